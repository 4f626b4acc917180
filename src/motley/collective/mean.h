// The weighted mean that every method of exchange computes: which values enter, with what coefficients, and the scale.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "motley/collective/gradient_reducer.h"

namespace motley::collective {

// sum_i(w_i g_i) / sum_i(w_i) as (sum of coefficient * g) * scale over the ranks whose weight is not zero, in rank
// order. Equal weights get the coefficient 1, so that their products are exact.
struct Mean {
  double total_weight = 0;
  std::vector<int> ranks;
  std::vector<double> coefficients;
  double scale = 0;
};
Mean weighted_mean(std::span<const double> weights);

// kernels::weighted_sum of values of this type that start `begin` bytes into buffers; coefficients are rounded to it.
void sum_as(DataType type, std::span<const std::byte* const> inputs, std::span<const double> coefficients, double scale,
            std::span<std::byte* const> outputs, std::size_t begin, std::size_t count);

}  // namespace motley::collective
