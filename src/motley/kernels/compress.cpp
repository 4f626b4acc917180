// Quantizes block by block; selects by magnitude without sorting or memory of its own.
#include "motley/kernels/compress.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace motley::kernels {
namespace {

#define MOTLEY_BODY "motley/kernels/compress_body.inc"
#include "motley/kernels/every_target.inc"

float quantize(Instructions instructions, const float* from, std::int8_t* to, std::size_t count) {
  MOTLEY_DISPATCH(instructions, quantize_block(from, to, count));
}

void dequantize(Instructions instructions, const std::int8_t* from, float scale, float* to, std::size_t count) {
  MOTLEY_DISPATCH(instructions, dequantize_block(from, scale, to, count));
}

// Ordered as the magnitudes are: a float without its sign, read as a number of 31 bits.
std::uint32_t magnitude_key(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}

}  // namespace

void quantize_int8_blocks(std::span<const float> from, std::int8_t* values, float* scales, std::size_t block,
                          Instructions instructions) {
  for (std::size_t begin = 0; begin < from.size(); begin += block) {
    *scales++ = quantize(instructions, from.data() + begin, values + begin, std::min(block, from.size() - begin));
  }
}

void dequantize_int8_blocks(std::span<const std::int8_t> values, const float* scales, float* to, std::size_t block,
                            Instructions instructions) {
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    dequantize(instructions, values.data() + begin, *scales++, to + begin, std::min(block, values.size() - begin));
  }
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
