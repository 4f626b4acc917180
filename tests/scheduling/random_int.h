// Whole numbers for random instances.
#pragma once

#include <cstdint>

#include "motley/base/random.h"

namespace motley::scheduling {

// From low to high, both included.
inline int random_int(Random& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
}

}  // namespace motley::scheduling
