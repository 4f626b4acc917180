// The bench `exchange`: what a round of exchanging gradients takes, against PyTorch's Gloo and against the machine.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> exchange_bench(const BenchOptions& options);

}  // namespace motley::bench
