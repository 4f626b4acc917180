// The bench `schedule`: the cluster simulator and its policies on real traces (docs/reference/scheduling-policies.md).
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// Against what Tiresias's simulator prints for the same trace.
Result<std::vector<BenchRow>> schedule_anchors(const BenchOptions& options);
// How long whole traces take.
Result<std::vector<BenchRow>> schedule_speed(const BenchOptions& options);
// Real traces at several loads, all policies.
Result<std::vector<BenchRow>> schedule_traces(const BenchOptions& options);
// Elastic policies at their best, on real traces: completion times and fairness; long.
Result<std::vector<BenchRow>> schedule_elastic(const BenchOptions& options);
// 100,000 jobs.
Result<std::vector<BenchRow>> schedule_scale(const BenchOptions& options);
// GADGET's experiments, all policies.
Result<std::vector<BenchRow>> schedule_settings(const BenchOptions& options);
// GADGET's experiment where jobs compete for several resources and for links, beside DRF and FIFO.
Result<std::vector<BenchRow>> schedule_gadget_contended(const BenchOptions& options);
// GADGET's own way with a slot, beside ours, and what its theorems promise.
Result<std::vector<BenchRow>> schedule_rounding(const BenchOptions& options);
// Gavel's experiments, on devices that are not alike.
Result<std::vector<BenchRow>> schedule_heterogeneous(const BenchOptions& options);
// Sia's workloads with its own applications.
Result<std::vector<BenchRow>> schedule_sia(const BenchOptions& options);
// The slot solver: how near to its bound, whether it keeps to what there is, and how long it takes.
Result<std::vector<BenchRow>> schedule_slots(const BenchOptions& options);

}  // namespace motley::bench
