// "cpu-only" and "gpu-only": all layers in one stage on one device type of that sort; of several such types, the best.
#include "motley/planning/search/assignment.h"

namespace motley::planning {
namespace {

class SingleType final : public Planner {
 public:
  explicit SingleType(bool cpu) : cpu_(cpu) {}

  std::string name() const override { return cpu_ ? "cpu-only" : "gpu-only"; }

  Result<Answer> plan(const Request& request) const override {
    MOTLEY_ASSIGN(const std::vector<int> types, types_of_sort(request.problem, cpu_, name()));
    Search search(request);
    for (const int type : types) {
      if (search.over()) {
        break;
      }
      search.consider(all_on(request.problem, type).type_of_layer);
    }
    return search.answer();
  }

 private:
  bool cpu_;
};

}  // namespace

std::unique_ptr<Planner> make_cpu_only() {
  return std::make_unique<SingleType>(true);
}
std::unique_ptr<Planner> make_gpu_only() {
  return std::make_unique<SingleType>(false);
}

}  // namespace motley::planning
