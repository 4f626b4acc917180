// The bench `ps-ablation`: what each choice in the parameter server is worth, a row a choice.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> ps_ablation_bench(const BenchOptions& options);

}  // namespace motley::bench
