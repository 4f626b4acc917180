// The benchmark "planners": every planning method on every model, with several seeds, and how planning time grows with
// layers and types. Writes planners.csv and planners.html into BenchOptions::pages.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> planners_bench(const BenchOptions& options);

}  // namespace motley::bench
