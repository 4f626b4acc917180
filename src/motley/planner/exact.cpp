// The planner "exact": hands a problem to the exact method for its cost model.
#include "motley/planner/exact.h"

namespace motley::planner {
namespace {

class Exact final : public Planner {
 public:
  std::string name() const override { return "exact"; }

  Result<Answer> plan(const Request& request) const override {
    if (request.evaluator) {
      return fail(ErrorCode::kInvalidInput,
                  "exact: the reward is not the cost model's, so that nothing can be proved; accepted: a request "
                  "without an evaluator");
    }
    return request.problem.cost_model == cost::CostModel::kHeterps ? exact_heterps(request) : exact_pipeline(request);
  }
};

}  // namespace

std::unique_ptr<Planner> make_exact() {
  return std::make_unique<Exact>();
}

}  // namespace motley::planner
