// The benchmark "plan": what exact plans are held against, how fast they come, how far the other methods are from them,
// and whether predictions hold.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> plan_bench(const BenchOptions& options);

}  // namespace motley::bench
