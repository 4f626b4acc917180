// Utilities against their formulas, and the envelope against the hull of many points.
#include "motley/schedule/utility.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "motley/base/random.h"

namespace motley::schedule {
namespace {

TEST(Utility, HasTheShapesThatItSays) {
  EXPECT_DOUBLE_EQ((Utility{Utility::Shape::kSquareRoot, 3}.at(16)), 12);
  EXPECT_DOUBLE_EQ((Utility{Utility::Shape::kLogarithm, 2}.at(std::exp(1.5) - 1)), 3);
  EXPECT_DOUBLE_EQ((Utility{Utility::Shape::kLinear, 2}.at(4)), 8);
  const Utility sigmoid{Utility::Shape::kSigmoid, 10, 0.5, 6};
  EXPECT_DOUBLE_EQ(sigmoid.at(6), 5);
  EXPECT_DOUBLE_EQ(sigmoid.at(8), 10 / (1 + std::exp(-1.0)));
}

// The upper hull of a sigmoid at so many steps between 0 and `most`.
std::vector<double> hull_of(const Utility& utility, double most, int steps) {
  std::vector<int> corners = {0};
  const auto value = [&](int step) { return utility.at(most * step / steps); };
  for (int step = 1; step <= steps; ++step) {
    const auto slope = [&](int from, int to) { return (value(to) - value(from)) / (to - from); };
    while (corners.size() > 1 && slope(corners.back(), step) >= slope(corners[corners.size() - 2], corners.back())) {
      corners.pop_back();
    }
    corners.push_back(step);
  }
  std::vector<double> hull;
  for (std::size_t i = 0; i + 1 < corners.size(); ++i) {
    for (int step = corners[i]; step < corners[i + 1]; ++step) {
      const double share = static_cast<double>(step - corners[i]) / (corners[i + 1] - corners[i]);
      hull.push_back(value(corners[i]) * (1 - share) + value(corners[i + 1]) * share);
    }
  }
  hull.push_back(value(steps));
  return hull;
}

TEST(Utility, TheEnvelopeIsTheHull) {
  Random random(4);
  constexpr int kSteps = 4000;
  for (int trial = 0; trial < 50; ++trial) {
    const double most = 1 + 5 * random.uniform();
    const Utility utility{Utility::Shape::kSigmoid, 2, 0.5 + 20 * random.uniform(), 8 * random.uniform()};
    SCOPED_TRACE(testing::Message() << "trial " << trial << ": steepness " << utility.steepness << ", middle "
                                    << utility.middle << ", most " << most);
    const std::vector<double> hull = hull_of(utility, most, kSteps);
    for (int step = 0; step <= kSteps; step += 7) {
      const double at = most * step / kSteps;
      EXPECT_NEAR(utility.envelope_at(at, most), hull[static_cast<std::size_t>(step)], 1e-5);
      EXPECT_GE(utility.envelope_at(at, most), utility.at(at) - 1e-12);
    }
  }
  const Utility root{Utility::Shape::kSquareRoot, 1};
  EXPECT_EQ(root.envelope_at(2, 9), root.at(2));
}

}  // namespace
}  // namespace motley::schedule
