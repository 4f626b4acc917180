// Chooses among the kernels' variants: sum_body.inc compiled once for each instruction set.
#include "motley/kernels/sum.h"

#include <cstring>

namespace motley::kernels {
namespace {

constexpr std::size_t kFused = 8;  // inputs in one pass: as many streams as the hardware's prefetchers follow

namespace portable {
#define MOTLEY_TARGET
#include "motley/kernels/sum_body.inc"
#undef MOTLEY_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define MOTLEY_TARGET __attribute__((target("avx2")))
#include "motley/kernels/sum_body.inc"
#undef MOTLEY_TARGET
}  // namespace avx2

namespace avx512 {
#if defined(__clang__)  // knows no preference of a width in the attribute
#define MOTLEY_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
#define MOTLEY_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#include "motley/kernels/sum_body.inc"
#undef MOTLEY_TARGET
}  // namespace avx512
#endif

template <class T>
void weighted_sum_as(Instructions instructions, std::span<const T* const> inputs, std::span<const T> coefficients,
                     T scale, std::span<T* const> outputs, std::size_t count) {
  if (count == 0) return;
  if (inputs.empty()) {
    for (T* output : outputs) std::memset(output, 0, count * sizeof(T));
    return;
  }
#if defined(__x86_64__)
  if (instructions == Instructions::kAvx512) {
    return avx512::sum_any<T>(inputs.data(), inputs.size(), coefficients.data(), scale, outputs.data(), outputs.size(),
                              count);
  }
  if (instructions == Instructions::kAvx2) {
    return avx2::sum_any<T>(inputs.data(), inputs.size(), coefficients.data(), scale, outputs.data(), outputs.size(),
                            count);
  }
#endif
  (void)instructions;
  portable::sum_any<T>(inputs.data(), inputs.size(), coefficients.data(), scale, outputs.data(), outputs.size(), count);
}

}  // namespace

Instructions best_instructions() {
#if defined(__x86_64__)
  static const Instructions best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      return Instructions::kAvx512;
    }
    return __builtin_cpu_supports("avx2") ? Instructions::kAvx2 : Instructions::kPortable;
  }();
  return best;
#else
  return Instructions::kPortable;
#endif
}

void weighted_sum(std::span<const float* const> inputs, std::span<const float> coefficients, float scale,
                  std::span<float* const> outputs, std::size_t count, Instructions instructions) {
  weighted_sum_as<float>(instructions, inputs, coefficients, scale, outputs, count);
}

void weighted_sum(std::span<const double* const> inputs, std::span<const double> coefficients, double scale,
                  std::span<double* const> outputs, std::size_t count, Instructions instructions) {
  weighted_sum_as<double>(instructions, inputs, coefficients, scale, outputs, count);
}

void round_to_bfloat16(std::span<const float> from, std::uint16_t* to, Instructions instructions) {
#if defined(__x86_64__)
  if (instructions == Instructions::kAvx512) return avx512::round_all(from.data(), to, from.size());
  if (instructions == Instructions::kAvx2) return avx2::round_all(from.data(), to, from.size());
#endif
  (void)instructions;
  portable::round_all(from.data(), to, from.size());
}

void widen_bfloat16(std::span<const std::uint16_t> from, float* to, Instructions instructions) {
#if defined(__x86_64__)
  if (instructions == Instructions::kAvx512) return avx512::widen_all(from.data(), to, from.size());
  if (instructions == Instructions::kAvx2) return avx2::widen_all(from.data(), to, from.size());
#endif
  (void)instructions;
  portable::widen_all(from.data(), to, from.size());
}

}  // namespace motley::kernels
