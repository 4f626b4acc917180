// The bench `house`: what is counted in the sources, and how long tests and demonstration took at this commit.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// The rows of tools/house, which says what they are.
Result<std::vector<BenchRow>> house_bench(const BenchOptions& options);

}  // namespace motley::bench
