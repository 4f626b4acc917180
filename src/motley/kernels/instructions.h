// The instruction sets that the kernels are compiled for. One is chosen per process; all give bitwise the same results.
#pragma once

namespace motley::kernels {

enum class Instructions { kPortable, kAvx2, kAvx512 };
// The widest that this processor and operating system support.
inline Instructions best_instructions() {
#if defined(__x86_64__)
  static const Instructions best = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return Instructions::kPortable;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      return Instructions::kAvx512;
    }
    return Instructions::kAvx2;
  }();
  return best;
#else
  return Instructions::kPortable;
#endif
}

}  // namespace motley::kernels
