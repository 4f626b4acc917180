// The list of the planning methods that need no libtorch.
#pragma once

#include <memory>
#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::planning {

// All methods without a policy network, by name: "exact", "brute-force", "cpu-only", "gpu-only", "heuristic", "greedy",
// "genetic", "bayesian", "pipedream". (Those with one are in motley/planning/learned/.)
std::vector<std::unique_ptr<Planner>> planners();

std::unique_ptr<Planner> make_exact();

}  // namespace motley::planning
