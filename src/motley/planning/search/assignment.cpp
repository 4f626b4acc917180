// Drawing, varying and comparing assignments (see assignment.h).
#include "motley/planning/search/assignment.h"

#include <fmt/ranges.h>

#include <cmath>

namespace motley::planning {
namespace {

std::size_t layers_of(const planning::Problem& problem) {
  return problem.layers.size();
}
int any_type(const planning::Problem& problem, Random& random) {
  return static_cast<int>(random.below(problem.types.size()));
}

}  // namespace

Assignment all_on(const planning::Problem& problem, int type) {
  const bool pipeline = problem.cost_model == planning::CostModel::kPipeline;
  return {std::vector<int>(layers_of(problem), type), std::vector<bool>(pipeline ? layers_of(problem) : 0)};
}

void normalise(Assignment& assignment) {
  const std::vector<int>& types = assignment.type_of_layer;
  for (std::size_t layer = 0; layer < assignment.cut_before.size(); ++layer) {
    assignment.cut_before[layer] = assignment.cut_before[layer] && layer > 0 && types[layer] == types[layer - 1];
  }
}

Assignment draw(const planning::Problem& problem, Random& random) {
  Assignment drawn = all_on(problem, any_type(problem, random));
  const double stay = random.uniform();
  for (std::size_t layer = 1; layer < layers_of(problem); ++layer) {
    const bool stays = random.uniform() < stay;
    drawn.type_of_layer[layer] = stays ? drawn.type_of_layer[layer - 1] : any_type(problem, random);
    if (!drawn.cut_before.empty()) {
      drawn.cut_before[layer] = !stays;
    }
  }
  normalise(drawn);
  return drawn;
}

void mutate(const planning::Problem& problem, Random& random, Assignment& assignment) {
  const std::size_t layers = layers_of(problem);
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
  if (std::isfinite(value)) {
    return {value, 0};
  }
  const planning::Objective unbounded{.goal = planning::Goal::kMostThroughput};
  const auto fastest = planning::provision(
      request.problem, planning::stages_of(request.problem, assignment.type_of_layer, assignment.cut_before), unbounded,
      kBriefly);
  return {value,
          fastest ? planning::value(planning::evaluate(request.problem, *fastest, unbounded), unbounded.goal) : value};
}

bool is_cpu(const planning::Type& type) {
  return type.exchange == planning::Exchange::kParameterServer;
}

Result<std::vector<int>> types_of_sort(const planning::Problem& problem, bool cpu, const std::string& method) {
  std::vector<int> types;
  std::vector<std::string> names;
  for (int type = 0; type < problem.type_count(); ++type) {
    names.push_back(problem.types[static_cast<std::size_t>(type)].name);
    if (is_cpu(problem.types[static_cast<std::size_t>(type)]) == cpu) {
      types.push_back(type);
    }
  }
  if (types.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: a {} type is needed; the device types are {}", method,
                cpu ? "CPU" : "GPU", fmt::join(names, ", "));
  }
  return types;
}

}  // namespace motley::planning
