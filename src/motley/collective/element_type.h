// What the elements of a communicator's buffers are, and their sum. The sum of half-precision values is taken in
// float32 and rounded once, so that it is the same whoever takes it and better than additions in their own type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace motley::collective {

enum class ElementType : std::uint8_t { kFloat32, kFloat64, kBfloat16, kFloat16, kByte };  // kByte is never summed

constexpr std::size_t width(ElementType type) {
  constexpr std::size_t kWidths[] = {4, 8, 2, 2, 1};
  return kWidths[static_cast<std::size_t>(type)];
}
const char* to_string(ElementType type);

// outputs[k][e] = (sum_i inputs[i][e]) * scale for `count` elements, inputs in their order; an input may be the very
// buffer of an output, but buffers may not overlap otherwise. Bitwise the same with every instruction set.
void sum_elements(ElementType type, std::span<const std::byte* const> inputs, double scale,
                  std::span<std::byte* const> outputs, std::size_t count);

}  // namespace motley::collective
