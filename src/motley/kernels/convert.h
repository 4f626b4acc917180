// The narrow forms of float32 that may go over the wire, and the way there and back. bfloat16 and float16 round to
// nearest, ties to even; infinities and signs stay, and a NaN stays NaN. Smaller than 16 bits an element, for
// gradients, are blocks of int8 under one scale, and the few elements of largest magnitude: what is lost is from -
// restored, which error feedback adds to the next gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/kernels/instructions.h"

namespace motley::kernels {

enum class WireFormat { kFloat32, kBfloat16, kFloat16 };

constexpr std::size_t byte_size(WireFormat format) {
  return format == WireFormat::kFloat32 ? 4 : 2;
}

// The upper half of an IEEE 754 single.
void round_to_bfloat16(std::span<const float> from, std::uint16_t* to, Instructions instructions = best_instructions());
void widen_bfloat16(std::span<const std::uint16_t> from, float* to, Instructions instructions = best_instructions());

// IEEE 754 half. Beyond its largest number (65504 and what rounds to it) lies infinity; below 2^-14 it is subnormal.
void round_to_float16(std::span<const float> from, std::uint16_t* to, Instructions instructions = best_instructions());
void widen_float16(std::span<const std::uint16_t> from, float* to, Instructions instructions = best_instructions());

// In any format: as it is, or by the above. Nothing may overlap.
void write_format(WireFormat format, std::span<const float> from, std::byte* to,
                  Instructions instructions = best_instructions());
void read_format(WireFormat format, const std::byte* from, std::span<float> to,
                 Instructions instructions = best_instructions());

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
