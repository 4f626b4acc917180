// What is said of many measurements in one number.
#pragma once

#include <cstddef>
#include <vector>

namespace motley {

// The middle one of the sorted values; of an even number the upper, or the lower, of both middle ones. There is one
// value at least.
double median(std::vector<double> values);
double lower_median(std::vector<double> values);
// The least value that is not exceeded by more than 1 - `share` of them (nearest rank); 0 < share <= 1.
double percentile(std::vector<double> values, double share);

struct Estimate {
  double mean = 0;
  // The mean of many more draws lies within this of `mean` with 95 % confidence, by Student's t distribution; infinite
  // for one draw.
  double half_interval = 0;
};
// Of one draw or more.
Estimate estimate(const std::vector<double>& draws);

}  // namespace motley
