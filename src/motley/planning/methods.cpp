#include "motley/planning/methods.h"

#include "motley/planning/exact/exact.h"

namespace motley::planning {

static constexpr int kMostHeterpsLayers = 2000;  // possible stages, and the memory for them, grow with its square

Result<Answer> plan_exact(const Request& request) {
  if (request.evaluator) {
    return fail(ErrorCode::kInvalidInput,
                "exact: the reward is not the cost model's, so that nothing can be proved; accepted: a request without "
                "an evaluator");
  }
  const bool is_heterps = request.problem.cost_model == CostModel::kHeterps;
  if (is_heterps && request.problem.layer_count() > kMostHeterpsLayers) {
    return fail(ErrorCode::kInvalidInput, "exact: {} layers under the cost model heterps; accepted: up to {}",
                request.problem.layer_count(), kMostHeterpsLayers);
  }
  return is_heterps ? exact_heterps(request) : exact_pipeline(request);
}

int max_exact_layers(const Problem& problem) {
  return problem.cost_model == CostModel::kHeterps ? kMostHeterpsLayers : max_pipeline_layers(problem);
}

std::vector<Planner> planners() {
  return {{"exact", plan_exact},        {"brute-force", plan_brute_force}, {"cpu-only", plan_cpu_only},
          {"gpu-only", plan_gpu_only},  {"heuristic", plan_heuristic},     {"greedy", plan_greedy},
          {"random", plan_random},      {"genetic", plan_genetic},         {"bayesian", plan_bayesian},
          {"pipedream", plan_pipedream}};
}

}  // namespace motley::planning
