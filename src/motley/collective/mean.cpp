// Weights to coefficients, and bytes to values.
#include "motley/collective/mean.h"

#include <algorithm>

#include "motley/kernels/sum.h"

namespace motley::collective {
namespace {

template <class T>
void sum_values(std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
                std::span<std::byte* const> outputs, std::size_t begin, std::size_t count) {
  std::vector<const T*> from;
  std::vector<T*> to;
  for (const std::byte* input : inputs) from.push_back(reinterpret_cast<const T*>(input + begin));
  for (std::byte* output : outputs) to.push_back(reinterpret_cast<T*>(output + begin));
  const std::vector<T> factors(coefficients.begin(), coefficients.end());
  kernels::weighted_sum(from, factors, static_cast<T>(scale), to, count);
}

}  // namespace

Mean weighted_mean(std::span<const double> weights) {
  Mean mean;
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    if (weights[rank] == 0) continue;
    mean.total_weight += weights[rank];
    mean.ranks.push_back(static_cast<int>(rank));
    mean.coefficients.push_back(weights[rank]);
  }
  if (mean.ranks.empty()) return mean;
  if (std::ranges::all_of(mean.coefficients, [&](double weight) { return weight == mean.coefficients[0]; })) {
    std::ranges::fill(mean.coefficients, 1.0);
    mean.scale = 1.0 / static_cast<double>(mean.ranks.size());
  } else {
    mean.scale = 1.0 / mean.total_weight;
  }
  return mean;
}

void sum_as(DataType type, std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
            std::span<std::byte* const> outputs, std::size_t begin, std::size_t count) {
  const auto sum = type == DataType::kFloat32 ? sum_values<float> : sum_values<double>;
  sum(inputs, coefficients, scale, outputs, begin, count);
}

}  // namespace motley::collective
