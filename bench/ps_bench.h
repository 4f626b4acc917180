// The bench `ps`: the parameter server beside the bare kernel, plain streams and other systems.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> ps_bench(const BenchOptions& options);

}  // namespace motley::bench
