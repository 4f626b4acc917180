#include "motley/planning/search/search.h"

#include <cmath>
#include <utility>

namespace motley::planning {
namespace {

constexpr double kProgressSeconds = 0.25;

std::size_t count_layers(const Problem& problem) {
  return problem.layers.size();
}
int any_type(const Problem& problem, Random& random) {
  return static_cast<int>(random.below(problem.types.size()));
}

}  // namespace

Search::Search(const Request& request)
    : request_(request), start_(request.clock.now()), last_progress_(request.clock.now()) {}

double Search::consider(const std::vector<int>& type_of_layer, const std::vector<bool>& cut_before) {
  const Problem& problem = request_.problem;
  if (const auto candidate =
          provision(problem, list_stages(problem, type_of_layer, cut_before), request_.objective, kBriefly)) {
    return consider(*candidate);
  }
  ++answer_.evaluations;
  return kInfinity;
}

double Search::consider(const Candidate& candidate) {
  return consider(candidate, request_.evaluator ? request_.evaluator(candidate)
                                                : evaluate(request_.problem, candidate, request_.objective));
}

double Search::consider(const Candidate& candidate, Evaluation evaluation) {
  ++answer_.evaluations;
  const double value = planning::value(evaluation, request_.objective.criterion);
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
                    (request_.max_evaluations > 0 && answer_.evaluations >= request_.max_evaluations);
  return answer_.stopped;
}

Answer Search::answer() const {
  Answer answer = answer_;
  answer.seconds = request_.clock.now() - start_;
  return answer;
}

Assignment all_on(const Problem& problem, int type) {
  const bool pipeline = problem.cost_model == CostModel::kPipeline;
  return {std::vector<int>(count_layers(problem), type), std::vector<bool>(pipeline ? count_layers(problem) : 0)};
}

void normalise(Assignment& assignment) {
  const std::vector<int>& types = assignment.type_of_layer;
  for (std::size_t layer = 0; layer < assignment.cut_before.size(); ++layer) {
    assignment.cut_before[layer] = assignment.cut_before[layer] && layer > 0 && types[layer] == types[layer - 1];
  }
}

Assignment draw(const Problem& problem, Random& random) {
  Assignment drawn = all_on(problem, any_type(problem, random));
  const double stay = random.uniform();
  for (std::size_t layer = 1; layer < count_layers(problem); ++layer) {
    const bool stays = random.uniform() < stay;
    drawn.type_of_layer[layer] = stays ? drawn.type_of_layer[layer - 1] : any_type(problem, random);
    if (!drawn.cut_before.empty()) drawn.cut_before[layer] = !stays;
  }
  normalise(drawn);
  return drawn;
}

void mutate(const Problem& problem, Random& random, Assignment& assignment) {
  const std::size_t layers = count_layers(problem);
  std::vector<int>& types = assignment.type_of_layer;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (random.below(layers) == 0) {
      switch (random.below(4)) {
        case 0:
          types[layer] = types[layer > 0 ? layer - 1 : layer];
          break;
        case 1:
          types[layer] = types[layer + 1 < layers ? layer + 1 : layer];
          break;
        default:
          types[layer] = any_type(problem, random);
      }
    }
    if (!assignment.cut_before.empty() && random.below(layers) == 0) {
      assignment.cut_before[layer] = !assignment.cut_before[layer];
    }
  }
  normalise(assignment);
}

Score score(const Request& request, Search& search, const Assignment& assignment) {
  const double value = search.consider(assignment.type_of_layer, assignment.cut_before);
  if (std::isfinite(value)) return {value, 0};
  const Objective unbounded{.criterion = Criterion::kMaxThroughput};
  const auto fastest =
      provision(request.problem, list_stages(request.problem, assignment.type_of_layer, assignment.cut_before),
                unbounded, kBriefly);
  return {value,
          fastest ? planning::value(evaluate(request.problem, *fastest, unbounded), unbounded.criterion) : value};
}

}  // namespace motley::planning
