// How use cases ask a planner: for the best number of micro-batches, within a time limit.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

#include "motley/planning/search/planner.h"
#include "motley/serial/options.h"

namespace motley::app {

struct SearchLimits {
  double seconds = 60;
  std::uint64_t seed = 1;

  static const OptionTable<SearchLimits>& options();
};

// Puts a request to a planner; whoever shows progress passes one that does.
using Ask = std::function<Result<planning::Answer>(const planning::Planner& planner, planning::Request request)>;
Result<planning::Answer> ask_silently(const planning::Planner& planner, planning::Request request);

// Of problems that differ in the number of micro-batches the one whose plan is best, and that plan, with what is proved
// of all of them. They share the time.
struct Solved {
  const planning::Problem* problem = nullptr;
  planning::Answer answer;
};
Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop,
                     const Ask& ask = ask_silently);

}  // namespace motley::app
