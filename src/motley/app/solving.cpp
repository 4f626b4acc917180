#include "motley/app/solving.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace motley::app {

const OptionTable<SearchLimits>& SearchLimits::options() {
  using enum OptionKind;
  static const OptionTable<SearchLimits> options = {
      {{"time_limit", kSeconds, "time limit of each method; the best plan found so far is kept", 1e-3},
       &SearchLimits::seconds},
      {{"seed", kInteger, "seed of the randomised methods", 0}, &SearchLimits::seed},
  };
  return options;
}

Result<planning::Answer> ask_silently(const planning::Planner& planner, planning::Request request) {
  return planner.plan(request);
}

Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop,
                     const Ask& ask) {
  Solved best;
  bool all_proved = true;
  double bound = std::numeric_limits<double>::infinity();
  double seconds = 0;
  for (const planning::Problem& problem : problems) {
    MOTLEY_ASSIGN(planning::Answer answer,
                  ask(planner, {.problem = problem,
                                .objective = objective,
                                .seed = limits.seed,
                                .seconds = limits.seconds / static_cast<double>(problems.size()),
                                .stop = stop}));
    all_proved = all_proved && answer.proved;
    const bool feasible = answer.best.has_value();
    const double value = feasible ? planning::value(answer.evaluation, objective.criterion) : 0;
    if (feasible || !answer.proved) bound = std::min(bound, answer.proved ? value : answer.bound);
    seconds += answer.seconds;
    const bool better = feasible && (best.problem == nullptr || !best.answer.best ||
                                     value < planning::value(best.answer.evaluation, objective.criterion));
    if (best.problem == nullptr || better) best = {&problem, std::move(answer)};
  }
  best.answer.proved = all_proved;
  best.answer.bound = std::isfinite(bound) ? bound : 0;
  best.answer.seconds = seconds;
  return best;
}

}  // namespace motley::app
