// The bench `zero-compute`: exchanges a second of published models by every way of exchange, ours and Gloo's.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> zero_compute_bench(const BenchOptions& options);

}  // namespace motley::bench
