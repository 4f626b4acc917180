// The bench `simulate`: the simulator against the cost model's formulas, its speed, and pipelines on a cluster of
// heterogeneous nodes against data parallelism.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> simulate_bench(const BenchOptions& options);

}  // namespace motley::bench
