#include "motley/ps/dense/dense_metrics.h"

#include <algorithm>

namespace motley::ps {

void Histogram::observe(double seconds) {
  const auto* const bound = std::ranges::lower_bound(kBounds, seconds);
  counts_[static_cast<std::size_t>(bound - kBounds.begin())].add(1);
  sum_.add(seconds);
}

JobMetrics::JobMetrics(int ranks, int cores)
    : shards(static_cast<std::size_t>(cores)), missing(static_cast<std::size_t>(ranks)) {
  for (ShardMetrics& shard : shards) shard.ranks = std::vector<ShardMetrics::Rank>(missing.size());
}

}  // namespace motley::ps
