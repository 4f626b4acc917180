// The bench `serve`: the scheduler as a service, killed while it works (docs/reference/scheduler-jobs.md).
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> serve_bench(const BenchOptions& options);

}  // namespace motley::bench
