// The narrow forms of float32 that may go over the wire: bfloat16 and float16, and the way there and back. Both round
// to nearest, ties to even; infinities and signs stay, and a NaN stays NaN.
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

}  // namespace motley::kernels
