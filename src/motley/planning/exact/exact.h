// The exact planner's two halves: each finds the best plan under one cost model, and proves how good it is.
#pragma once

#include "motley/planning/search/planner.h"

namespace motley::planning {

Result<Answer> exact_heterps(const Request& request);
// Error (kInvalidInput): too many stages or numbers of devices, more than max_pipeline_layers.
Result<Answer> exact_pipeline(const Request& request);
// Of a chain of layers on the devices of a problem, whose own layers do not matter; 0: too many devices for any.
int max_pipeline_layers(const Problem& problem);

}  // namespace motley::planning
