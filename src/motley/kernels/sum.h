// The arithmetic of exchanging gradients, over raw buffers: weighted sums of several workers' values. Nothing here does
// I/O, allocates or takes locks.
//
// All instruction sets give bitwise the same result: products are rounded, then added in the order of the inputs, then
// scaled; nothing is fused (the build sets -ffp-contract=off).
#pragma once

#include <cstddef>
#include <span>

#include "motley/kernels/instructions.h"

namespace motley::kernels {

// outputs[k][e] = (sum_i coefficients[i] * inputs[i][e]) * scale for every output k and element e < count, in one pass
// over memory. Inputs are added in their order; no input gives zeros. An input may be the very buffer of an output (the
// sum is then in place), but buffers may not overlap otherwise. No alignment is needed; 64 bytes is fastest.
void weighted_sum(std::span<const float* const> inputs, std::span<const float> coefficients, float scale,
                  std::span<float* const> outputs, std::size_t count, Instructions instructions = best_instructions());
void weighted_sum(std::span<const double* const> inputs, std::span<const double> coefficients, double scale,
                  std::span<double* const> outputs, std::size_t count, Instructions instructions = best_instructions());

}  // namespace motley::kernels
