// Chooses among the variants of the conversions.
#include "motley/kernels/convert.h"

#include <bit>

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

}  // namespace motley::kernels
