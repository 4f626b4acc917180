// Chooses among the variants of the conversions; selects by magnitude without sorting or memory of its own.
#include "motley/kernels/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace motley::kernels {
namespace {

#define MOTLEY_BODY "motley/kernels/convert_body.inc"
#include "motley/kernels/every_target.inc"

// Ordered as the magnitudes are: a float without its sign, read as a number of 31 bits.
std::uint32_t magnitude_key(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

}  // namespace

void round_to_bfloat16(std::span<const float> from, std::uint16_t* to, Instructions instructions) {
  MOTLEY_DISPATCH(instructions, round_bfloat16(from.data(), to, from.size()));
}

void widen_bfloat16(std::span<const std::uint16_t> from, float* to, Instructions instructions) {
  MOTLEY_DISPATCH(instructions, widen_bfloat16(from.data(), to, from.size()));
}

void round_to_float16(std::span<const float> from, std::uint16_t* to, Instructions instructions) {
  MOTLEY_DISPATCH(instructions, round_float16(from.data(), to, from.size()));
}

void widen_float16(std::span<const std::uint16_t> from, float* to, Instructions instructions) {
  MOTLEY_DISPATCH(instructions, widen_float16(from.data(), to, from.size()));
}

void write_format(WireFormat format, std::span<const float> from, std::byte* to, Instructions instructions) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(to);
  if (format == WireFormat::kBfloat16) return round_to_bfloat16(from, halves, instructions);
  if (format == WireFormat::kFloat16) return round_to_float16(from, halves, instructions);
  if (!from.empty()) std::memcpy(to, from.data(), from.size_bytes());
}

void read_format(WireFormat format, const std::byte* from, std::span<float> to, Instructions instructions) {
  const std::span halves(reinterpret_cast<const std::uint16_t*>(from), to.size());
  if (format == WireFormat::kBfloat16) return widen_bfloat16(halves, to.data(), instructions);
  if (format == WireFormat::kFloat16) return widen_float16(halves, to.data(), instructions);
  if (!to.empty()) std::memcpy(to.data(), from, to.size_bytes());
}

void quantize_int8_blocks(std::span<const float> from, std::int8_t* values, float* scales, std::size_t block,
                          Instructions instructions) {
  MOTLEY_DISPATCH(instructions, quantize_blocks(from.data(), values, scales, block, from.size()));
}

void dequantize_int8_blocks(std::span<const std::int8_t> values, const float* scales, float* to, std::size_t block,
                            Instructions instructions) {
  MOTLEY_DISPATCH(instructions, dequantize_blocks(values.data(), scales, to, block, values.size()));
}

// The smallest key that is selected is found digit by digit from the top: of the keys that share the digits found so
// far, a histogram of the next digit says in which of its values the last selected key lies. What is left of `selected`
// at the end is how many keys equal to the smallest are taken.
void select_largest(std::span<const float> from, std::size_t selected, std::uint32_t* indices) {
  if (selected == 0) return;
  struct Digit {
    int width, shift;
  };
  std::uint32_t smallest = 0;
  for (const Digit digit : {Digit{11, 20}, Digit{11, 9}, Digit{9, 0}}) {
    std::size_t counts[1 << 11] = {};
    const std::uint32_t mask = (1u << digit.width) - 1;
    for (const float value : from) {
      const std::uint32_t key = magnitude_key(value) >> digit.shift;
      if (key >> digit.width == smallest) ++counts[key & mask];
    }
    std::uint32_t found = mask;
    while (counts[found] < selected) selected -= counts[found--];
    smallest = smallest << digit.width | found;
  }
  for (std::size_t e = 0; e < from.size(); ++e) {
    const std::uint32_t key = magnitude_key(from[e]);
    if (key < smallest || (key == smallest && selected == 0)) continue;
    if (key == smallest) --selected;
    *indices++ = static_cast<std::uint32_t>(e);
  }
}

bool scatter_add(std::span<const std::uint32_t> indices, const float* values, float coefficient, std::span<float> to) {
  if (std::ranges::any_of(indices, [&](std::uint32_t index) { return index >= to.size(); })) return false;
  for (std::size_t i = 0; i < indices.size(); ++i) to[indices[i]] += coefficient * values[i];
  return true;
}

}  // namespace motley::kernels
