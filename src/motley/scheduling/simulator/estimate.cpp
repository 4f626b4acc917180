#include "motley/scheduling/simulator/estimate.h"

#include <array>
#include <cmath>
#include <limits>

namespace motley::scheduling {
namespace {

// Quantiles of 97.5 % by degrees of freedom, from 1; beyond these that of the normal distribution, which is 2 % less at
// most.
constexpr std::array kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
constexpr double kNormal = 1.960;

}  // namespace

Estimate estimate(const std::vector<double>& draws) {
  const auto count = static_cast<double>(draws.size());
  Estimate result;
  for (const double draw : draws) result.mean += draw / count;
  if (draws.size() < 2) {
    result.half_interval = std::numeric_limits<double>::infinity();
    return result;
  }
  double squares = 0;
  for (const double draw : draws) squares += (draw - result.mean) * (draw - result.mean);
  const std::size_t freedom = draws.size() - 1;
  const double quantile = freedom <= kStudent.size() ? kStudent[freedom - 1] : kNormal;
  result.half_interval = quantile * std::sqrt(squares / (count - 1) / count);
  return result;
}

}  // namespace motley::scheduling
