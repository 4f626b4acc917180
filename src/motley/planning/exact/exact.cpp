// The planner "exact": hands a problem to the exact method for its cost model.
#include "motley/planning/exact/exact.h"

#include <algorithm>

namespace motley::planning {
namespace {

constexpr double kMostKinds = 3000;
constexpr double kMostStages = 6e6;  // that the tables of exact_pipeline hold

// The pipeline's exact method looks at every stage with every number of replicas.
Status check_size(const planning::Problem& problem) {
  if (problem.cost_model != planning::CostModel::kPipeline) {
    return {};
  }
  double kinds = 0;
  for (int type = 0; type < problem.type_count(); ++type) {
    kinds += static_cast<double>(problem.most_replicas(type));
  }
  const double layers = problem.layer_count();
  if (const double most = std::min(kMostKinds, kMostStages / (layers * layers)); kinds > most) {
    return fail(
        ErrorCode::kInvalidInput,
        "exact: {} layers and stages of up to {:.0f} numbers of devices, over all types, are too many; accepted: up to "
        "{:.0f}, by lower counts, more micro-batches, or fewer layers (--most-layers)",
        problem.layer_count(), kinds, most);
  }
  return {};
}

class Exact final : public Planner {
 public:
  std::string name() const override { return "exact"; }

  Result<Answer> plan(const Request& request) const override {
    if (request.evaluator) {
      return fail(ErrorCode::kInvalidInput,
                  "exact: the reward is not the cost model's, so that nothing can be proved; accepted: a request "
                  "without an evaluator");
    }
    MOTLEY_TRY(check_size(request.problem));
    return request.problem.cost_model == planning::CostModel::kHeterps ? exact_heterps(request)
                                                                       : exact_pipeline(request);
  }
};

}  // namespace

std::unique_ptr<Planner> make_exact() {
  return std::make_unique<Exact>();
}

}  // namespace motley::planning
