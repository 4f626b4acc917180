// The bench `consistency`: what is lost and won where workers may be at different steps.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> consistency_bench(const BenchOptions& options);

}  // namespace motley::bench
