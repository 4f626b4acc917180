// Two racks behind slow uplinks: how well the formulas of cost/placement say what servers in each rack take.
#pragma once

#include <vector>

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> racks_rows(const BenchOptions& options);

}  // namespace motley::bench
