// Middles of a few values, and intervals against how often they hold the truth.
#include "motley/base/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/random.h"

namespace motley {
namespace {

TEST(Median, IsTheMiddleOrEitherOfTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(lower_median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 3);
  EXPECT_EQ(lower_median({4, 1, 3, 2}), 2);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(lower_median({7}), 7);
}

TEST(Percentile, IsTheNearestRank) {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 0.99), 99);
  EXPECT_EQ(percentile(values, 0.991), 100);
  EXPECT_EQ(percentile(values, 0.5), lower_median(values));
  EXPECT_EQ(percentile({5}, 0.01), 5);
}

TEST(Estimate, IsTheMeanAndItsInterval) {
  const Estimate three = estimate({1, 2, 6});
  EXPECT_DOUBLE_EQ(three.mean, 3);
  EXPECT_NEAR(three.half_interval, 4.303 * std::sqrt(7.0 / 3), 1e-12);
  EXPECT_EQ(estimate({5}).mean, 5);
  EXPECT_TRUE(std::isinf(estimate({5}).half_interval));
  EXPECT_EQ(estimate({2, 2}).half_interval, 0);
}

TEST(Estimate, HoldsTheTruthNineteenTimesOutOfTwenty) {
  Random random(1);
  for (const int count : {2, 5, 30, 60}) {
    constexpr int kTrials = 4000;
    int held = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> draws;
      for (int i = 0; i < count; ++i) draws.push_back(3 + 2 * random.normal());
      const Estimate one = estimate(draws);
      held += std::abs(one.mean - 3) <= one.half_interval ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(held) / kTrials, 0.95, 0.015) << count << " draws";
  }
}

}  // namespace
}  // namespace motley
