// The instruction sets that this processor can run, for tests that go through all of them.
#pragma once

#include <vector>

#include "motley/kernels/instructions.h"

namespace motley::kernels {

inline std::vector<Instructions> supported() {
  std::vector<Instructions> sets = {Instructions::kPortable};
  if (best_instructions() >= Instructions::kAvx2) sets.push_back(Instructions::kAvx2);
  if (best_instructions() >= Instructions::kAvx512) sets.push_back(Instructions::kAvx512);
  return sets;
}

}  // namespace motley::kernels
