// The bench `zero-compute`: exchanges a second of published models by every way of exchange, ours and Gloo's; and of
// the sharded parameter server over TCP, in turns with ps-lite and Gloo.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> zero_compute_bench(const BenchOptions& options);
Result<std::vector<BenchRow>> sharded_server_bench(const BenchOptions& options);

}  // namespace motley::bench
