#include "motley/train/job/batch_split.h"

#include <algorithm>
#include <filesystem>

#include "motley/base/os/file.h"

namespace motley::train {

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm) {
  data::BatchSplitOptions options;
  MOTLEY_ASSIGN(options.policy, data::parse_split_policy(job.batch_split.mode));
  options.batch = static_cast<std::uint32_t>(job.training.global_batch_size);
  for (const cluster::Worker& worker : cluster.workers) {
    data::WorkerLimits limits;
    limits.minimum = static_cast<std::uint32_t>(std::max<std::int64_t>(worker.min_samples, has_batch_norm ? 2 : 1));
    if (worker.max_samples) {
      limits.maximum = static_cast<std::uint32_t>(std::min<std::int64_t>(*worker.max_samples, limits.maximum));
    }
    options.limits.push_back(limits);
  }
  // A shard may be a single sample; and shards are claimed by workers at the same step.
  options.may_pull = !has_batch_norm && job.gradient_sync.consistency == "bsp";
  if (options.policy == data::SplitPolicy::kFixed && job.execution.plan.empty()) {
    if (job.batch_split.fixed.size() != cluster.workers.size()) {
      return fail(ErrorCode::kInvalidInput, "batch_split.fixed: {} numbers are given for {} workers",
                  job.batch_split.fixed.size(), cluster.workers.size());
    }
    options.proportions.assign(job.batch_split.fixed.begin(), job.batch_split.fixed.end());
  }
  if (options.policy == data::SplitPolicy::kReplay) {
    const std::filesystem::path file = std::filesystem::path(job.batch_split.replay) / "metrics.jsonl";
    MOTLEY_ASSIGN(const std::string text, read_file(file));
    MOTLEY_ASSIGN(options.recorded, data::read_splits(text, file.string()));
  }
  return options;
}

}  // namespace motley::train
