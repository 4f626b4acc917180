// The row of the bench `ps` about sparse tables over the network: what is left of a table's speed where its rows come
// and go over loopback TCP.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> sparse_net_rows(const BenchOptions& options);

}  // namespace motley::bench
