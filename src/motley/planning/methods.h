// The list of the planning methods that need no libtorch.
#pragma once

#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::planning {

// All methods without a policy network, by name: "exact", "brute-force", "cpu-only", "gpu-only", "heuristic", "greedy",
// "random", "genetic", "bayesian", "pipedream". (Those with one are in motley/planning/learned/.)
std::vector<Planner> planners();

// Layers that the exact method bears on the problem's devices under its cost model, whatever its own layers are.
int max_exact_layers(const Problem& problem);

// By the exact method for the problem's cost model. Errors (kInvalidInput): the request has an evaluator; under
// kHeterps, too many layers.
Result<Answer> plan_exact(const Request& request);

}  // namespace motley::planning
