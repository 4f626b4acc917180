// The bench `tls`: what it costs to encrypt what goes between hosts.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> tls_bench(const BenchOptions& options);

}  // namespace motley::bench
