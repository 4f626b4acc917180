// Simulated annealing over the stages of a pipeline (Kirkpatrick, Gelatt, Vecchi 1983): better plans near a good one,
// where there are too many to be searched.
#pragma once

#include <functional>

#include "motley/base/random.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {

// Changes stages of `begin`, a feasible candidate of a problem under kPipeline, in so many steps, fewer where `over`
// says so: devices, types, borders, cuts. Returns the best candidate that it met, `begin` where none was better.
Candidate anneal(const Request& request, const Candidate& begin, int steps, Random& random,
                 const std::function<bool()>& over);

}  // namespace motley::planning
