// Utilities against their formulas, and the envelope against the hull of many points.
#include "motley/scheduling/trace/job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "motley/base/random.h"

namespace motley::scheduling {
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
std::vector<double> compute_hull(const Utility& utility, double most, int steps) {
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

TEST(Utility, ATableIsStraightBetweenItsPoints) {
  const Utility table{.shape = Utility::Shape::kTable, .weight = 2, .points = {{0, 1}, {10, 1}, {20, 5}}};
  EXPECT_TRUE(check(table));
  EXPECT_DOUBLE_EQ(table.at(0), 2);
  EXPECT_DOUBLE_EQ(table.at(5), 2);
  EXPECT_DOUBLE_EQ(table.at(15), 6);
  EXPECT_DOUBLE_EQ(table.at(100), 10);
  EXPECT_DOUBLE_EQ(table.envelope_at(10, 20), 6) << "on the line from the first point to the last";
  EXPECT_DOUBLE_EQ(table.envelope_at(5, 10), 2) << "where it ends before it rises";
  const auto refused = [](std::vector<Utility::Point> points) {
    const Status wrong = check({.shape = Utility::Shape::kTable, .points = std::move(points)});
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_EQ(refused({{0, 0}}), "utility.points has 1 points; accepted: two or more");
  EXPECT_EQ(refused({{1, 0}, {2, 1}}), "utility.points[0].iterations is 1; accepted: 0 for the first");
  EXPECT_EQ(refused({{0, 0}, {0, 1}}), "utility.points[1].iterations is 0; accepted: more than the point before");
  EXPECT_EQ(refused({{0, 2}, {1, 1}}),
            "utility.points[1].utility is 1; accepted: no less than the point before: utilities never fall");
}

TEST(Utility, TheEnvelopeOfATableIsItsHull) {
  Random random(6);
  constexpr int kSteps = 200;
  for (int trial = 0; trial < 50; ++trial) {
    Utility utility{.shape = Utility::Shape::kTable, .weight = 1 + random.uniform()};
    double value = 0;
    for (int step = 0; step <= kSteps; ++step) {
      if (step == 0 || random.below(10) == 0) {
        utility.points.push_back({static_cast<double>(step), value});
        value += random.uniform() * random.uniform() * random.uniform();
      }
    }
    utility.points.push_back({kSteps + 1.0, value});
    const double most = 1 + static_cast<double>(random.below(kSteps));
    const std::vector<double> hull = compute_hull(utility, most, static_cast<int>(most));
    for (std::size_t step = 0; step < hull.size(); ++step) {
      EXPECT_NEAR(utility.envelope_at(static_cast<double>(step), most), hull[step], 1e-9) << "trial " << trial;
    }
  }
}

TEST(Utility, TheEnvelopeIsTheHull) {
  Random random(4);
  constexpr int kSteps = 4000;
  for (int trial = 0; trial < 50; ++trial) {
    const double most = 1 + 5 * random.uniform();
    const Utility utility{Utility::Shape::kSigmoid, 2, 0.5 + 20 * random.uniform(), 8 * random.uniform()};
    SCOPED_TRACE(testing::Message() << "trial " << trial << ": steepness " << utility.steepness << ", middle "
                                    << utility.middle << ", most " << most);
    const std::vector<double> hull = compute_hull(utility, most, kSteps);
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
}  // namespace motley::scheduling
