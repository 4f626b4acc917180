// "heuristic", AIBox's rule: the sparse part of the model on CPUs, all the rest on GPUs. On a chain of layers the rule
// can be read in two ways, and of both, on every pair of a CPU and a GPU type, the best plan counts:
//  - the sparse part is every sparse layer, with the layers next to it that have no parameters (they only join or shape
//    the rows): after it, and before it where the model begins;
//  - the sparse part is everything up to the last sparse layer, and such layers after it.
// A model without sparse layers is wholly on one GPU type.
#include <algorithm>

#include "motley/planning/search/assignment.h"

namespace motley::planning {
namespace {

// Whether each layer belongs to the sparse part, by the first or the second reading.
std::vector<bool> sparse_part(const std::vector<planning::LayerSize>& layers, bool up_to_last) {
  const auto sparse = [](const planning::LayerSize& layer) { return layer.sparse_bytes > 0; };
  const auto last = std::find_if(layers.rbegin(), layers.rend(), sparse);
  const std::ptrdiff_t sparse_end = layers.rend() - last;
  std::vector<bool> part(layers.size());
  bool inside = sparse_end > 0;  // the layers where the model begins
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool before_end = up_to_last && static_cast<std::ptrdiff_t>(i) < sparse_end;
    inside = sparse(layers[i]) || before_end || (inside && layers[i].parameter_bytes == 0);
    part[i] = inside;
  }
  return part;
}

class Heuristic final : public Planner {
 public:
  std::string name() const override { return "heuristic"; }

  Result<Answer> plan(const Request& request) const override {
    const planning::Problem& problem = request.problem;
    MOTLEY_ASSIGN(const std::vector<int> cpus, types_of_sort(problem, true, name()));
    MOTLEY_ASSIGN(const std::vector<int> gpus, types_of_sort(problem, false, name()));
    Search search(request);
    for (const bool up_to_last : {false, true}) {
      const std::vector<bool> part = sparse_part(problem.layers, up_to_last);
      for (const int cpu : cpus) {
        for (const int gpu : gpus) {
          if (search.over()) {
            return search.answer();
          }
          std::vector<int> type_of_layer(part.size());
          std::transform(part.begin(), part.end(), type_of_layer.begin(),
                         [&](bool sparse) { return sparse ? cpu : gpu; });
          search.consider(type_of_layer);
        }
      }
    }
    return search.answer();
  }
};

}  // namespace

std::unique_ptr<Planner> make_heuristic() {
  return std::make_unique<Heuristic>();
}

}  // namespace motley::planning
