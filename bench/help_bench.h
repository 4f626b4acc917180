// The bench `help`: whether the help of every command says of every flag what it takes and what holds without it.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> help_bench(const BenchOptions& options);

}  // namespace motley::bench
