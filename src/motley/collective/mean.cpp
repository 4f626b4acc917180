// Weights to coefficients.
#include "motley/collective/mean.h"

#include <algorithm>

namespace motley::collective {

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

}  // namespace motley::collective
