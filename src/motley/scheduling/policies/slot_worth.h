// What so many workers until the end of a slot are worth to each job: the slot problem as policies of GADGET's kind
// pose it.
//
// With the utility objective it is what a job's utility, or the least concave function above it, gains by the progress
// that equation (1) promises, less what its devices cost until then. With the completion objective it is by how much
// sooner a job is done, over the square root of what it has left: short jobs come first, but not at any price, since
// devices that a ring wastes are missed by all who wait. (Over what it has left, or over nothing, average times on real
// traces are longer.) With the makespan objective it is the work done, in seconds of one device, more so for jobs that
// have longer to go. With the fairness objective it is by how much a job's finish-time ratio (Themis's: how much longer
// it takes than on an equal part of the cluster) falls, those that are high counting most.
#pragma once

#include <vector>

#include "motley/scheduling/policies/slot.h"
#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// For these of the `active` jobs that are there, on machines that may be a part of the state's, until `end`.
SlotProblem slot_problem(const State& state, const std::vector<int>& jobs, std::size_t active, const Machines& machines,
                         double end, Objective objective);

}  // namespace motley::scheduling
