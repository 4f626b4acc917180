// What all planning methods share (see planner.h): the search that counts evaluations, keeps the best candidate and
// knows when to end.
#include "motley/planning/search/planner.h"

#include <utility>

namespace motley::planning {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kProgressSeconds = 0.25;

}  // namespace

double Answer::gap(planning::Goal goal) const {
  if (proved) {
    return 0;
  }
  return best && bound > 0 ? (planning::value(evaluation, goal) - bound) / bound : kInfinity;
}

Search::Search(const Request& request)
    : request_(request), start_(request.clock.now()), last_progress_(request.clock.now()) {}

double Search::consider(const std::vector<int>& type_of_layer, const std::vector<bool>& cut_before) {
  const planning::Problem& problem = request_.problem;
  if (const auto candidate = planning::provision(problem, planning::stages_of(problem, type_of_layer, cut_before),
                                                 request_.objective, kBriefly)) {
    return consider(*candidate);
  }
  ++answer_.evaluations;
  return kInfinity;
}

double Search::consider(const planning::Candidate& candidate) {
  return consider(candidate, request_.evaluator ? request_.evaluator(candidate)
                                                : planning::evaluate(request_.problem, candidate, request_.objective));
}

double Search::consider(const planning::Candidate& candidate, planning::Evaluation evaluation) {
  ++answer_.evaluations;
  const double value = planning::value(evaluation, request_.objective.goal);
  if (value < best_value_) {
    best_value_ = value;
    answer_.best = candidate;
    answer_.evaluation = std::move(evaluation);
  }
  return value;
}

bool Search::over() {
  const double now = request_.clock.now();
  if (request_.progress && now - last_progress_ >= kProgressSeconds) {
    last_progress_ = now;
    request_.progress({answer_.evaluations, best_value_, answer_.bound, now - start_});
  }
  answer_.stopped = answer_.stopped || now - start_ >= request_.seconds || request_.stop.stop_requested() ||
                    (request_.most_evaluations > 0 && answer_.evaluations >= request_.most_evaluations);
  return answer_.stopped;
}

Answer Search::answer() const {
  Answer answer = answer_;
  answer.seconds = request_.clock.now() - start_;
  return answer;
}

}  // namespace motley::planning
