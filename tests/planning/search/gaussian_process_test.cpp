// The Gaussian process against a posterior computed by hand, and expected improvement against its integral.
#include "motley/planning/search/gaussian_process.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace motley::planning {
namespace {

// The three strings lie on a line, one place apart, with a correlation of 1/2 a place. The inverse of their covariance
// [1 1/2 1/4; 1/2 1 1/2; 1/4 1/2 1] is 4/3 [1 -1/2 0; -1/2 5/4 -1/2; 0 -1/2 1].
class ThreePoints : public testing::Test {
 protected:
  const std::vector<Codes> points_ = {{0, 0}, {0, 1}, {1, 1}};
  const std::vector<double> values_ = {1, 2, -1};
  const GaussianProcess process_{points_, values_, 1 / std::numbers::ln2, 0};
};

TEST_F(ThreePoints, HavePosteriorComputedByHand) {
  // To {1, 0} the covariances are (1/2, 1/4, 1/2); times the inverse (1/2, -1/4, 1/2).
  const Posterior posterior = process_.at({1, 0});
  EXPECT_NEAR(posterior.mean, -0.5, 1e-12);
  EXPECT_NEAR(posterior.deviation, 0.75, 1e-12);  // sqrt(1 - 7/16)
}

TEST_F(ThreePoints, AreInterpolated) {
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const Posterior posterior = process_.at(points_[i]);
    EXPECT_NEAR(posterior.mean, values_[i], 1e-12);
    EXPECT_NEAR(posterior.deviation, 0, 1e-7);
  }
}

TEST_F(ThreePoints, HaveLikelihoodComputedByHand) {
  // values' inverse values = 28/3, and the covariance's determinant is 9/16.
  EXPECT_NEAR(process_.log_likelihood(), -0.5 * (28.0 / 3 + std::log(9.0 / 16) + 3 * std::log(2 * std::numbers::pi)),
              1e-12);
}

TEST_F(ThreePoints, SayNothingOfWhatIsFarAway) {
  const GaussianProcess process({{0, 0, 0}}, {3}, 0.01, 0);
  const Posterior posterior = process.at({1, 1, 1});
  EXPECT_NEAR(posterior.mean, 0, 1e-12);
  EXPECT_NEAR(posterior.deviation, 1, 1e-12);
}

TEST(GaussianProcessNoise, PullsMeanTowardsPrior) {
  const GaussianProcess process({{0}}, {2}, 1, 1);  // half of the variance is noise
  EXPECT_NEAR(process.at({0}).mean, 1, 1e-12);
  EXPECT_NEAR(process.at({0}).deviation, std::sqrt(0.5), 1e-12);
}

TEST(ExpectedImprovement, EqualsItsIntegral) {
  for (const Posterior posterior : {Posterior{0, 1}, Posterior{-0.5, 0.75}, Posterior{2, 0.3}, Posterior{-3, 2}}) {
    const double best = -1;
    double integral = 0;
    constexpr double kStep = 1e-3;
    for (double z = -10; z < 10; z += kStep) {
      const double value = posterior.mean + posterior.deviation * z;
      integral += std::max(best - value, 0.0) * std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi) * kStep;
    }
    EXPECT_NEAR(expected_improvement(posterior, best), integral, 1e-6);
  }
}

TEST(ExpectedImprovement, OfACertainValueIsItsGain) {
  EXPECT_EQ(expected_improvement({1, 0}, 3), 2);
  EXPECT_EQ(expected_improvement({3, 0}, 1), 0);
}

}  // namespace
}  // namespace motley::planning
