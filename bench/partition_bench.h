// The bench `partition`, simulated part: the partition's controller against equal shares and against the rule of the
// work that it is to surpass, on deterministic simulated workers with published timings.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> partition_bench(const BenchOptions& options);

}  // namespace motley::bench
