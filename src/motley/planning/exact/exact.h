// The exact planner's two halves: each finds the best plan under one cost model, and proves how good it is.
#pragma once

#include "motley/planning/search/planner.h"

namespace motley::planning {

Result<Answer> exact_heterps(const Request& request);
// Error (kInvalidInput): too many stages or numbers of devices.
Result<Answer> exact_pipeline(const Request& request);

}  // namespace motley::planning
