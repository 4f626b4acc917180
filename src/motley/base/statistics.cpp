#include "motley/base/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace motley {
namespace {

// Quantiles of 97.5 % by degrees of freedom, from 1; beyond these that of the normal distribution, which is 2 % less at
// most.
constexpr std::array kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
constexpr double kNormal = 1.960;

// The one that stands at this place when all are sorted.
double value_at(std::vector<double> values, std::size_t place) {
  const auto there = values.begin() + static_cast<std::ptrdiff_t>(place);
  std::ranges::nth_element(values, there);
  return *there;
}

}  // namespace

double median(std::vector<double> values) {
  const std::size_t place = values.size() / 2;
  return value_at(std::move(values), place);
}

double lower_median(std::vector<double> values) {
  const std::size_t place = (values.size() - 1) / 2;
  return value_at(std::move(values), place);
}

double percentile(std::vector<double> values, double share) {
  const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
  return value_at(std::move(values), place);
}

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

}  // namespace motley
