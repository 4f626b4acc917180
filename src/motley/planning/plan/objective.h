// What a plan is to be best at, and what it must not exceed.
#pragma once

#include <limits>
#include <string>

#include "motley/base/result.h"

namespace motley::planning {

enum class Criterion { kMinCost, kMaxThroughput, kMinStepTime };

// Counts and memory of device types are limits of the problem (motley/planning/cost/problem.h), not of the objective.
struct Objective {
  Criterion criterion = Criterion::kMinCost;
  double min_throughput = 0;  // samples a second
  double max_cost = std::numeric_limits<double>::infinity();
  double max_hourly_cost = std::numeric_limits<double>::infinity();
};

std::string describe(const Objective& objective);  // "lowest cost with at least 20,000 samples/s"
// Errors (kInvalidInput): a negative or non-finite floor, a cap that is not above 0.
Status validate(const Objective& objective);

}  // namespace motley::planning
