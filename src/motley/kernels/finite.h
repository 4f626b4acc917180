// Whether values are finite numbers, as fast as memory gives them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace motley::kernels {

// An infinity or a NaN has all bits of its exponent set. No branch: the compiler makes vectors of it.
inline bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t found = 0;
  for (const float value : values) found |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent;
  return found == 0;
}
inline bool all_finite(std::span<const double> values) {
  constexpr std::uint64_t kExponent = 0x7ff0000000000000;
  std::uint64_t found = 0;
  for (const double value : values) found |= (std::bit_cast<std::uint64_t>(value) & kExponent) == kExponent;
  return found == 0;
}

}  // namespace motley::kernels
