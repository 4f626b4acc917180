#include "motley/cli/solving.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "motley/base/units.h"

namespace motley::cli {
namespace {

// A line that replaces itself, on a terminal only.
std::function<void(const planning::Progress&)> progress_line(const std::string& method) {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [method](const planning::Progress& progress) {
    std::fprintf(stderr, "\r\033[K%s: %lld plans in %s, best %.6g, bound %.6g", method.c_str(),
                 static_cast<long long>(progress.evaluations), format_seconds(progress.seconds).c_str(), progress.best,
                 progress.bound);
    std::fflush(stderr);
  };
}

}  // namespace

Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request) {
  request.progress = progress_line(planner.name());
  Result<planning::Answer> answer = planner.plan(request);
  if (request.progress) std::fprintf(stderr, "\r\033[K");
  return answer;
}

Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop) {
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
    const double value = feasible ? planning::value(answer.evaluation, objective.goal) : 0;
    if (feasible || !answer.proved) bound = std::min(bound, answer.proved ? value : answer.bound);
    seconds += answer.seconds;
    const bool better = feasible && (best.problem == nullptr || !best.answer.best ||
                                     value < planning::value(best.answer.evaluation, objective.goal));
    if (best.problem == nullptr || better) best = {&problem, std::move(answer)};
  }
  best.answer.proved = all_proved;
  best.answer.bound = std::isfinite(bound) ? bound : 0;
  best.answer.seconds = seconds;
  return best;
}

}  // namespace motley::cli
