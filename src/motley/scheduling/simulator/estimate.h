// A mean over draws, and how far off it may be.
#pragma once

#include <vector>

namespace motley::scheduling {

struct Estimate {
  double mean = 0;
  // The mean of many more draws lies within this of `mean` with 95 % confidence, by Student's t distribution; infinite
  // for one draw.
  double half_interval = 0;
};

// Of one draw or more.
Estimate estimate(const std::vector<double>& draws);

}  // namespace motley::scheduling
