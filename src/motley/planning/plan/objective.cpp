// Says an objective in words, and refuses those that no plan could mean.
#include "motley/planning/plan/objective.h"

#include <cmath>
#include <vector>

#include "motley/base/units.h"

namespace motley::planning {

std::string describe(const Objective& objective) {
  std::string text = objective.goal == Goal::kLeastMoney       ? "least money"
                     : objective.goal == Goal::kMostThroughput ? "most throughput"
                                                               : "least step time";
  std::vector<std::string> limits;
  if (objective.min_throughput > 0) {
    limits.push_back(fmt::format("at least {} samples/s", format_number(objective.min_throughput)));
  }
  if (std::isfinite(objective.max_money)) {
    limits.push_back(fmt::format("at most {} in all", format_number(objective.max_money)));
  }
  if (std::isfinite(objective.max_price_per_hour)) {
    limits.push_back(fmt::format("at most {} an hour", format_number(objective.max_price_per_hour)));
  }
  for (std::size_t i = 0; i < limits.size(); ++i) {
    text += (i == 0 ? " with " : " and ") + limits[i];
  }
  return text;
}

Status validate(const Objective& objective) {
  if (!(objective.min_throughput >= 0) || std::isinf(objective.min_throughput)) {
    return fail(ErrorCode::kInvalidInput,
                "objective: min_throughput is {}; accepted: samples a second of at least 0 (0: no floor)",
                objective.min_throughput);
  }
  if (!(objective.max_money > 0)) {
    return fail(ErrorCode::kInvalidInput, "objective: max_money is {}; accepted: a number above 0",
                objective.max_money);
  }
  if (!(objective.max_price_per_hour > 0)) {
    return fail(ErrorCode::kInvalidInput, "objective: max_price_per_hour is {}; accepted: a number above 0",
                objective.max_price_per_hour);
  }
  return {};
}

}  // namespace motley::planning
