// What a policy network sees of a planning problem: one row of numbers for each layer.
#include "motley/planning/learned/layer_features.h"

#include <cmath>
#include <vector>

namespace motley::planning {
namespace {

constexpr int kKinds = static_cast<int>(model::LayerKind::kOther) + 1;

// Sizes and times span many powers of ten and may be 0: log(1 + x / scale), where the scale is the geometric mean of
// the positive values, spreads them evenly whatever their unit; then mean 0 and variance 1 (a constant becomes 0).
torch::Tensor standardised(const std::vector<double>& values) {
  const torch::Tensor column = torch::tensor(values, torch::kFloat64);
  const torch::Tensor positive = column.index({column > 0});
  if (positive.numel() == 0) {
    return torch::zeros_like(column);
  }
  const torch::Tensor scaled = torch::log1p(column / positive.log().mean().exp());
  const torch::Tensor centred = scaled - scaled.mean();
  return centred / (centred.square().mean().sqrt() + 1e-6);
}

}  // namespace

torch::Tensor layer_features(const planning::Problem& problem) {
  const bool heterps = problem.cost_model == planning::CostModel::kHeterps;
  const double batch =
      heterps ? problem.profile_batch : static_cast<double>(problem.batch) / static_cast<double>(problem.micro_batches);
  const int layers = problem.layer_count();

  std::vector<std::int64_t> kinds;
  for (const planning::LayerSize& layer : problem.layers) {
    kinds.push_back(static_cast<std::int64_t>(layer.kind));
  }
  const auto column = [&](auto&& value_of) {
    std::vector<double> values;
    for (int layer = 0; layer < layers; ++layer) {
      values.push_back(value_of(layer));
    }
    return standardised(values);
  };
  const auto size = [&](int layer) -> const planning::LayerSize& {
    return problem.layers[static_cast<std::size_t>(layer)];
  };

  std::vector<torch::Tensor> numbers;
  numbers.push_back(column([&](int layer) { return problem.cut_bytes[static_cast<std::size_t>(layer)]; }));
  numbers.push_back(column([&](int layer) { return size(layer).parameter_bytes; }));
  numbers.push_back(column([&](int layer) { return size(layer).sparse_bytes; }));
  for (int type = 0; type < problem.type_count(); ++type) {
    const double bytes_per_second = problem.types[static_cast<std::size_t>(type)].bytes_per_second;
    numbers.push_back(column([&](int layer) {
      const planning::LayerOnType& time = problem.at(layer, type);
      return time.forward.at(batch) + time.backward.at(batch);
    }));
    numbers.push_back(column([&](int layer) {
      return 2 * (batch * size(layer).sparse_bytes + size(layer).parameter_bytes) / bytes_per_second;
    }));
  }
  return torch::cat({torch::eye(layers), torch::one_hot(torch::tensor(kinds), kKinds).to(torch::kFloat32),
                     torch::stack(numbers, 1).to(torch::kFloat32)},
                    1);
}

}  // namespace motley::planning
