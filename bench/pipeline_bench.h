// The benchmark "pipeline": whether `motley train --plan` takes as long as the plan says.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

// Plans drawn by lot for five networks on two emulated device types, and some on two processors that are what they are.
// Writes pipeline.html with the measured against the predicted step of each.
Result<std::vector<BenchRow>> pipeline_prediction(const BenchOptions& options);

}  // namespace motley::bench
