// The bench `demo`: the job that tools/demo runs, in its rows.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// With --quick 150 steps, whose test accuracy says nothing and is left out.
Result<std::vector<BenchRow>> demo_bench(const BenchOptions& options);

}  // namespace motley::bench
