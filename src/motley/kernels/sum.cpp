// Chooses among the variants of the sums.
#include "motley/kernels/sum.h"

#include <cstring>

namespace motley::kernels {
namespace {

constexpr std::size_t kFused = 8;  // inputs in one pass: as many streams as the hardware's prefetchers follow

#define MOTLEY_BODY "motley/kernels/sum_body.inc"
#include "motley/kernels/every_target.inc"

template <class T>
void weighted_sum_as(Instructions instructions, std::span<const T* const> inputs, std::span<const T> coefficients,
                     T scale, std::span<T* const> outputs, std::size_t count) {
  if (count == 0) return;
  if (inputs.empty()) {
    for (T* output : outputs) std::memset(output, 0, count * sizeof(T));
    return;
  }
  MOTLEY_DISPATCH(instructions, sum_any<T>(inputs.data(), inputs.size(), coefficients.data(), scale, outputs.data(),
                                           outputs.size(), count));
}

}  // namespace

void weighted_sum(std::span<const float* const> inputs, std::span<const float> coefficients, float scale,
                  std::span<float* const> outputs, std::size_t count, Instructions instructions) {
  weighted_sum_as<float>(instructions, inputs, coefficients, scale, outputs, count);
}

void weighted_sum(std::span<const double* const> inputs, std::span<const double> coefficients, double scale,
                  std::span<double* const> outputs, std::size_t count, Instructions instructions) {
  weighted_sum_as<double>(instructions, inputs, coefficients, scale, outputs, count);
}

}  // namespace motley::kernels
