// Part of the bench `plan`: how near the step that a profile and the cost model predict comes to the step of real
// training, alone and with two workers.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// With --quick one round, and without the largest of the three models.
Result<std::vector<BenchRow>> prediction_bench(const BenchOptions& options);

}  // namespace motley::bench
