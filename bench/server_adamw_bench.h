// The optimizer's step in host memory, as a parameter server takes it for one worker, against the memory's bandwidth.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> server_adamw_bench(const BenchOptions& options);

}  // namespace motley::bench
