// The bench `schedule`: the cluster simulator and its policies on real traces (docs/schedule.md).
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// Against what Tiresias's simulator prints for the same trace.
Result<std::vector<BenchRow>> schedule_anchors(const BenchOptions& options);
// How long whole traces take.
Result<std::vector<BenchRow>> schedule_speed(const BenchOptions& options);

}  // namespace motley::bench
