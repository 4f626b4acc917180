// The bench `partition`, real processes: how near whole training steps come to the best split, on emulated paces and on
// cores that other load slows.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> partition_processes(const BenchOptions& options);

}  // namespace motley::bench
