// Chooses among the variants of the conversions.
#include "motley/kernels/convert.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace motley::kernels {
namespace {

#define MOTLEY_BODY "motley/kernels/convert_body.inc"
#include "motley/kernels/every_target.inc"

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

}  // namespace motley::kernels
