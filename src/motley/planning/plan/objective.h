// What a plan is to be best at, and what it must not exceed.
#pragma once

#include <limits>
#include <string>

#include "motley/base/result.h"

namespace motley::planning {

enum class Goal { kLeastMoney, kMostThroughput, kLeastStepTime };

// Counts and memory of device types are limits of the problem (motley/planning/cost/problem.h), not of the objective.
struct Objective {
  Goal goal = Goal::kLeastMoney;
  double min_throughput = 0;  // samples a second
  double max_money = std::numeric_limits<double>::infinity();
  double max_price_per_hour = std::numeric_limits<double>::infinity();
};

std::string describe(const Objective& objective);  // "least money with at least 20,000 samples/s"
// Errors (kInvalidInput): a negative or non-finite floor, a cap that is not above 0.
Status validate(const Objective& objective);

}  // namespace motley::planning
