#include "motley/schedule/utility.h"

#include <algorithm>
#include <cmath>

namespace motley::schedule {
namespace {

// Where the straight line from (0, u(0)) touches a sigmoid, or `most` if that is before: up to there the line is the
// envelope, behind it the sigmoid, which is concave there. The touching point is where the chord's slope is greatest;
// it lies behind the middle, and slopes of chords rise up to it and fall behind it.
double touching_point(const Utility& utility, double most) {
  const double begin = utility.at(0);
  double low = std::clamp(utility.middle, 0.0, most);
  double high = most;
  for (int step = 0; step < 100 && high - low > 1e-9 * most; ++step) {
    const double at = (low + high) / 2;
    const double value = utility.at(at);
    const double slope = utility.steepness * value * (1 - value / utility.weight);
    (slope * at > value - begin ? low : high) = at;
  }
  return high;
}

}  // namespace

double Utility::at(double iterations) const {
  switch (shape) {
    case Shape::kSquareRoot:
      return weight * std::sqrt(iterations);
    case Shape::kLogarithm:
      return weight * std::log1p(iterations);
    case Shape::kSigmoid:
      return weight / (1 + std::exp(-steepness * (iterations - middle)));
    case Shape::kLinear:
      break;
  }
  return weight * iterations;
}

double Utility::envelope_at(double iterations, double most) const {
  if (shape != Shape::kSigmoid || iterations >= most) return at(iterations);
  const double touches = touching_point(*this, most);
  if (iterations >= touches) return at(iterations);
  return at(0) + (at(touches) - at(0)) * iterations / touches;
}

}  // namespace motley::schedule
