// Parts of a step, made one after the other, against the one step that they make up, in closed form.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "motley/base/random.h"
#include "motley/kernels/update.h"

namespace motley::kernels {
namespace {

// One element's weight and state.
struct Point {
  float weight = 0;
  float first = 0;
  float second = 0;
};

void update(Point& point, float gradient, const UpdateOptions& options) {
  const WireInput input{&gradient, WireFormat::kFloat32};
  const float one = 1;
  float* const state[] = {&point.first, &point.second};
  fused_update({&input, 1}, {&one, 1}, 1, options, &point.weight, state, nullptr, WireFormat::kFloat32, 1);
}

// Positive numbers that add up to one.
std::vector<double> random_parts(Random& random) {
  std::vector<double> parts(2 + random.below(7));
  for (double& part : parts) part = 0.05 + random.uniform();
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  for (double& part : parts) part /= sum;
  return parts;
}

Point after_parts(Point point, float gradient, UpdateOptions options, const std::vector<double>& parts) {
  options.step -= 1;
  for (const double part : parts) {
    options.fraction = part;
    options.step += part;
    update(point, gradient, options);
  }
  return point;
}

TEST(Fraction, PartsOfAStepMakeTheStepForSgdAndMomentum) {
  Random random(31);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov}) {
    for (int trial = 0; trial < 300; ++trial) {
      const UpdateOptions options = {.rule = rule,
                                     .learning_rate = 0.1 * random.uniform(),
                                     .momentum = trial == 0 ? 0 : 0.99 * random.uniform(),
                                     .dampening = random.below(2) == 0 ? 0 : random.uniform(),
                                     .step = static_cast<double>(trial % 3 == 0 ? 1 : 2 + random.below(100))};
      const float moved = options.step == 1 ? 0 : static_cast<float>(4 * random.uniform() - 2);
      const Point start = {static_cast<float>(random.uniform()), moved, 0};
      const auto gradient = static_cast<float>(2 * random.uniform() - 1);
      Point whole = start;
      update(whole, gradient, options);
      const Point parts = after_parts(start, gradient, options, random_parts(random));
      EXPECT_NEAR(parts.weight, whole.weight, 2e-6) << trial;
      EXPECT_NEAR(parts.first, whole.first, 4e-6) << trial;
    }
  }
}

// A part by hand: a quarter of a step of momentum 0.81, whose fourth root is 0.9487 and 1 - that over 0.19 is 0.27015.
TEST(Fraction, AQuarterOfAStepOfMomentum) {
  Point point = {1, 2, 0};
  const double quarter = std::sqrt(0.9);
  const double reached = (1 - quarter) / 0.19;
  update(point, 0.5F,
         {.rule = UpdateRule::kMomentum, .learning_rate = 0.1, .momentum = 0.81, .step = 2.25, .fraction = 0.25});
  EXPECT_NEAR(point.first, quarter * 2 + reached * 0.5, 1e-6);
  const double constant = 0.5 / 0.19;  // where the momentum goes
  EXPECT_NEAR(point.weight, 1 - 0.1 * (0.25 * constant + 0.81 * reached * (2 - constant)), 1e-6);
}

TEST(Fraction, DecoupledDecayIsExactAndTheOtherOfSecondOrder) {
  const std::vector<double> parts = {0.2, 0.5, 0.3};
  for (const double decay : {0.5, 0.05}) {
    const UpdateOptions adamw = {
        .rule = UpdateRule::kAdamW, .learning_rate = 0.1, .weight_decay = decay, .epsilon = 1e30, .step = 5};
    Point whole = {1, 0, 0};
    update(whole, 0, adamw);
    EXPECT_NEAR(after_parts({1, 0, 0}, 0, adamw, parts).weight, whole.weight, 2e-7);

    const UpdateOptions sgd = {.rule = UpdateRule::kSgd, .learning_rate = 0.1, .weight_decay = decay, .step = 5};
    whole = {1, 0, 0};
    update(whole, 0, sgd);
    const double apart = after_parts({1, 0, 0}, 0, sgd, parts).weight - whole.weight;
    // (1 - ax)(1 - bx)(1 - cx) - (1 - x) = (ab + ac + bc) x^2 - abc x^3
    const double x = 0.1 * decay;
    EXPECT_NEAR(apart, 0.31 * x * x - 0.03 * x * x * x, 2e-7);
  }
}

TEST(Fraction, AdamsStateIsExactAndItsMoveOfFirstOrder) {
  Random random(32);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<double> parts = random_parts(random);
    const Point start = {0, static_cast<float>(2 * random.uniform() - 1), static_cast<float>(0.5 + random.uniform())};
    const auto gradient = static_cast<float>(2 * random.uniform() - 1);
    for (const double forgotten : {0.2, 0.1, 0.02}) {
      const UpdateOptions options = {.rule = UpdateRule::kAdam,
                                     .learning_rate = 1,
                                     .beta1 = 1 - forgotten,
                                     .beta2 = 1 - forgotten / 4,
                                     .step = 1000};
      Point whole = start;
      update(whole, gradient, options);
      const Point got = after_parts(start, gradient, options, parts);
      EXPECT_NEAR(got.first, whole.first, 2e-6);
      EXPECT_NEAR(got.second, whole.second, 2e-6);
      // The move is a mean over moments between the step's ends, which lie within |g - m| (1 - beta1) of each other;
      // likewise of the second, whose root is at least 0.7 here.
      const double range = forgotten * (2 / 0.7 + 1.5 / 4);
      EXPECT_NEAR(got.weight, whole.weight, range) << trial;
    }
  }
}

// From nothing all corrected moments are the gradient itself, so that the first step is exact.
TEST(Fraction, AdamsFirstStepIsExact) {
  Random random(33);
  for (int trial = 0; trial < 100; ++trial) {
    const UpdateOptions options = {.rule = UpdateRule::kAdam, .learning_rate = 0.01, .step = 1};
    const auto gradient = static_cast<float>(2 * random.uniform() - 1);
    Point whole;
    update(whole, gradient, options);
    EXPECT_NEAR(after_parts({}, gradient, options, random_parts(random)).weight, whole.weight, 1e-6);
  }
}

}  // namespace
}  // namespace motley::kernels
