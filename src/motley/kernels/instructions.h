// The instruction sets that the kernels are compiled for. One is chosen per process; all give bitwise the same results.
#pragma once

namespace motley::kernels {

enum class Instructions { kPortable, kAvx2, kAvx512 };
// The widest that this processor and operating system support.
Instructions best_instructions();

}  // namespace motley::kernels
