// "greedy": decides the layers from first to last, never taking anything back. Deciding layer l, all layers before it
// keep what was decided, and all after it are taken to go along with l; so the first decision chooses the best single
// type, and each later one chooses between staying on the type of the layer before and moving the whole rest of the
// model to another (or, where the cost model is the pipeline's, into a new stage of the same type). Of equal choices,
// staying is taken. layers * types evaluations.
#include <algorithm>

#include "motley/planning/search/assignment.h"

namespace motley::planning {
namespace {

class Greedy final : public Planner {
 public:
  std::string name() const override { return "greedy"; }

  Result<Answer> plan(const Request& request) const override {
    const planning::Problem& problem = request.problem;
    Search search(request);
    Assignment decided = all_on(problem, 0);
    Score best = score(request, search, decided);
    for (std::ptrdiff_t layer = 0; layer < problem.layer_count(); ++layer) {
      const Assignment before = decided;
      const auto index = static_cast<std::size_t>(layer);
      for (int type = 0; type < problem.type_count(); ++type) {
        Assignment choice = before;
        const bool stays = before.type_of_layer[index] == type;
        if (stays && (layer == 0 || choice.cut_before.empty())) {
          continue;  // already scored
        }
        if (search.over()) {
          return search.answer();
        }
        std::fill(choice.type_of_layer.begin() + layer, choice.type_of_layer.end(), type);
        if (stays) {
          choice.cut_before[index] = true;
        }
        if (const Score scored = score(request, search, choice); scored < best) {
          best = scored;
          decided = std::move(choice);
        }
      }
    }
    return search.answer();
  }
};

}  // namespace

std::unique_ptr<Planner> make_greedy() {
  return std::make_unique<Greedy>();
}

}  // namespace motley::planning
