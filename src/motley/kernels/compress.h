// Lossy forms of a gradient that are smaller than 16 bits an element: blocks of int8 under one scale, and the few
// elements of largest magnitude. What is lost is from - restored; error feedback adds it to the next gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/kernels/instructions.h"

namespace motley::kernels {

// Elements under one scale. 256 keep the scales below 2 % of the values' bytes.
inline constexpr std::size_t kInt8Block = 256;

constexpr std::size_t int8_blocks(std::size_t count, std::size_t block = kInt8Block) {
  return (count + block - 1) / block;
}

// values[e] = from[e] / scale of e's block, rounded to nearest, ties to even, where a block's scale is its largest
// magnitude / 127; so an element is off by half a scale at most (and a few parts in 2^24 of its block's largest). The
// last block may be short. A block whose scale would not be a normal number (all below 1.5e-36) becomes zero. A block
// with a NaN or an infinity gets the scale NaN and is restored as NaN throughout: a gradient that diverged is seen.
void quantize_int8_blocks(std::span<const float> from, std::int8_t* values, float* scales,
                          std::size_t block = kInt8Block, Instructions instructions = best_instructions());
// to[e] = values[e] * scale of e's block.
void dequantize_int8_blocks(std::span<const std::int8_t> values, const float* scales, float* to,
                            std::size_t block = kInt8Block, Instructions instructions = best_instructions());

// The indices of the `selected` elements of largest magnitude, ascending, into indices[0, selected). Of equal
// magnitudes the lower indices are taken; a NaN counts as larger than infinity. At most 2^32 elements; selected <=
// from.size().
void select_largest(std::span<const float> from, std::size_t selected, std::uint32_t* indices);

// to[indices[i]] += coefficient * values[i], in order. False, and nothing is changed, where an index is outside `to`.
[[nodiscard]] bool scatter_add(std::span<const std::uint32_t> indices, const float* values, float coefficient,
                               std::span<float> to);

}  // namespace motley::kernels
