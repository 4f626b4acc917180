// Methods that look at the few plans that a rule leads to.
//
// "cpu-only" and "gpu-only": all layers in one stage on one device type of that sort; of several such types, the best.
//
// "heuristic", AIBox's rule: the sparse part of the model on CPUs, all the rest on GPUs. On a chain of layers the rule
// can be read in two ways, and of both, on every pair of a CPU and a GPU type, the best plan counts:
//  - the sparse part is every sparse layer, with the layers next to it that have no parameters (they only join or shape
//    the rows): after it, and before it where the model begins;
//  - the sparse part is everything up to the last sparse layer, and such layers after it.
// A model without sparse layers is wholly on one GPU type.
//
// "greedy": decides the layers from first to last, never taking anything back. Deciding layer l, all layers before it
// keep what was decided, and all after it are taken to go along with l; so the first decision chooses the best single
// type, and each later one chooses between staying on the type of the layer before and moving the whole rest of the
// model to another (or, where the cost model is the pipeline's, into a new stage of the same type). Of equal choices,
// staying is taken. layers * types evaluations.
#include <fmt/ranges.h>

#include <algorithm>

#include "motley/planning/search/search.h"

namespace motley::planning {
namespace {

// All types of that sort. CPU types are those whose stages exchange through a parameter server.
Result<std::vector<int>> types_of_sort(const Problem& problem, bool cpu, const std::string& method) {
  std::vector<int> types;
  std::vector<std::string> names;
  for (int type = 0; type < problem.type_count(); ++type) {
    names.push_back(problem.type(type).name);
    if ((problem.type(type).gradient_sync == GradientSync::kParameterServer) == cpu) types.push_back(type);
  }
  if (types.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: a {} type is needed; the device types are {}", method,
                cpu ? "CPU" : "GPU", fmt::join(names, ", "));
  }
  return types;
}

Result<Answer> plan_on_one_type(const Request& request, bool cpu, const std::string& method) {
  MOTLEY_ASSIGN(const std::vector<int> types, types_of_sort(request.problem, cpu, method));
  Search search(request);
  for (const int type : types) {
    if (search.over()) break;
    search.consider(all_on(request.problem, type).type_of_layer);
  }
  return search.answer();
}

// Whether each layer belongs to the sparse part, by the first or the second reading.
std::vector<bool> sparse_part(const std::vector<LayerSize>& layers, bool up_to_last) {
  const auto sparse = [](const LayerSize& layer) { return layer.sparse_bytes > 0; };
  const std::ptrdiff_t sparse_end = layers.rend() - std::find_if(layers.rbegin(), layers.rend(), sparse);
  std::vector<bool> part(layers.size());
  bool inside = sparse_end > 0;  // the layers where the model begins
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool before_end = up_to_last && static_cast<std::ptrdiff_t>(i) < sparse_end;
    inside = sparse(layers[i]) || before_end || (inside && layers[i].parameter_bytes == 0);
    part[i] = inside;
  }
  return part;
}

}  // namespace

Result<Answer> plan_cpu_only(const Request& request) {
  return plan_on_one_type(request, true, "cpu-only");
}

Result<Answer> plan_gpu_only(const Request& request) {
  return plan_on_one_type(request, false, "gpu-only");
}

Result<Answer> plan_heuristic(const Request& request) {
  MOTLEY_ASSIGN(const std::vector<int> cpus, types_of_sort(request.problem, true, "heuristic"));
  MOTLEY_ASSIGN(const std::vector<int> gpus, types_of_sort(request.problem, false, "heuristic"));
  Search search(request);
  for (const bool up_to_last : {false, true}) {
    const std::vector<bool> part = sparse_part(request.problem.layers, up_to_last);
    for (const int cpu : cpus) {
      for (const int gpu : gpus) {
        if (search.over()) return search.answer();
        std::vector<int> type_of_layer;
        for (const bool sparse : part) type_of_layer.push_back(sparse ? cpu : gpu);
        search.consider(type_of_layer);
      }
    }
  }
  return search.answer();
}

Result<Answer> plan_greedy(const Request& request) {
  const Problem& problem = request.problem;
  Search search(request);
  Assignment decided = all_on(problem, 0);
  Score best = score(request, search, decided);
  for (int layer = 0; layer < problem.layer_count(); ++layer) {
    const Assignment before = decided;
    for (int type = 0; type < problem.type_count(); ++type) {
      Assignment choice = before;
      const bool stays = before.type_of_layer[index(layer)] == type;
      if (stays && (layer == 0 || choice.cut_before.empty())) continue;  // already scored
      if (search.over()) return search.answer();
      std::fill(choice.type_of_layer.begin() + layer, choice.type_of_layer.end(), type);
      if (stays) choice.cut_before[index(layer)] = true;
      if (const Score scored = score(request, search, choice); scored < best) {
        best = scored;
        decided = std::move(choice);
      }
    }
  }
  return search.answer();
}

}  // namespace motley::planning
