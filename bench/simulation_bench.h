// The bench `simulation`: whether Motley's protocols keep what they promise under simulated faults, and whether what
// guards them is missed where it is dropped.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> simulation_bench(const BenchOptions& options);

}  // namespace motley::bench
