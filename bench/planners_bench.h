// The benchmark "planners": every planning method on every model, with several seeds, and how planning time grows with
// layers and types. Writes planners.csv and planners.html into BenchOptions::pages.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> planners_bench(const BenchOptions& options);
// Whether learning finds more than drawing at random does, with as many evaluations; writes learning.html and
// learning.csv.
Result<std::vector<BenchRow>> planners_learning(const BenchOptions& options);

}  // namespace motley::bench
