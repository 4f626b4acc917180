// Emulated seconds follow the stated distributions and schedule, and dishonest emulation is refused.
#include "motley/cluster/emulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace motley::cluster {
namespace {

using ::testing::HasSubstr;

TEST(Emulation, StepsTakeTheirSamplesAndTheFixedDelay) {
  const Emulation emulation{0.01, {.seconds = 0.5}, {}};
  EXPECT_DOUBLE_EQ(emulated_seconds(emulation, 0, 10, 1, 0), 0.6);
  EXPECT_DOUBLE_EQ(emulated_seconds(emulation, 7, 1, 2, 3), 0.51);
  EXPECT_EQ(emulated_seconds(emulation, 7, 0, 2, 3), 0) << "no samples, no step";
}

TEST(Emulation, ChangesHoldFromTheirStepOn) {
  const Emulation emulation{
      1, {.seconds = 2}, {{5, 10.0, std::nullopt}, {8, std::nullopt, Delay{.seconds = 3}}, {9, 20.0, Delay{}}}};
  const double expected[] = {3, 3, 3, 3, 3, 12, 12, 12, 13, 20, 20};
  for (std::uint64_t step = 0; step < std::size(expected); ++step) {
    EXPECT_DOUBLE_EQ(emulated_seconds(emulation, step, 1, 1, 0), expected[step]) << step;
  }
}

TEST(Emulation, DrawsDependOnSeedRankAndStepOnly) {
  const Emulation emulation{1, {.kind = Delay::Kind::kExponential, .seconds = 1}, {}};
  const double first = emulated_seconds(emulation, 3, 1, 11, 2);
  EXPECT_EQ(first, emulated_seconds(emulation, 3, 1, 11, 2));
  EXPECT_NE(first, emulated_seconds(emulation, 4, 1, 11, 2));
  EXPECT_NE(first, emulated_seconds(emulation, 3, 1, 12, 2));
  EXPECT_NE(first, emulated_seconds(emulation, 3, 1, 11, 3));
}

TEST(Emulation, DelaysHaveTheMeanAndDeviationOfTheirDistribution) {
  const struct {
    Delay delay;
    double mean;
    double deviation;
  } cases[] = {
      {{.kind = Delay::Kind::kUniform, .seconds = 2, .deviation = 0.5}, 2, 0.5},
      {{.kind = Delay::Kind::kNormal, .seconds = 2, .deviation = 0.25}, 2, 0.25},
      {{.kind = Delay::Kind::kExponential, .seconds = 2}, 2, 2},
      {{.kind = Delay::Kind::kGamma, .seconds = 2, .deviation = 1}, 2, 1},
      {{.kind = Delay::Kind::kGamma, .seconds = 2, .deviation = 3}, 2, 3},  // a shape below 1
      {{.kind = Delay::Kind::kBernoulli, .seconds = 4, .probability = 0.25}, 1, std::sqrt(0.25 * 0.75) * 4},
  };
  constexpr int kDraws = 100000;
  for (const auto& c : cases) {
    const Emulation emulation{1e-9, c.delay, {}};
    double sum = 0;
    double squares = 0;
    double least = 1e9;
    for (int step = 0; step < kDraws; ++step) {
      const double seconds = emulated_seconds(emulation, static_cast<std::uint64_t>(step), 1, 5, 1);
      sum += seconds;
      squares += seconds * seconds;
      least = std::min(least, seconds);
    }
    const double mean = sum / kDraws;
    const double deviation = std::sqrt(squares / kDraws - mean * mean);
    EXPECT_NEAR(mean, c.mean, 5 * c.deviation / std::sqrt(kDraws)) << static_cast<int>(c.delay.kind);
    EXPECT_NEAR(deviation, c.deviation, 0.04 * c.deviation) << static_cast<int>(c.delay.kind);
    EXPECT_GE(least, 0);
  }
}

TEST(Emulation, ANegativeDrawIsNoDelay) {
  const Emulation emulation{1, {.kind = Delay::Kind::kNormal, .seconds = 0, .deviation = 1}, {}};
  int none = 0;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    const double seconds = emulated_seconds(emulation, step, 1, 5, 1);
    EXPECT_GE(seconds, 1);
    none += seconds == 1 ? 1 : 0;
  }
  EXPECT_GT(none, 400);
  EXPECT_LT(none, 600);
}

TEST(Emulation, IsRefusedWhereItWouldLie) {
  EXPECT_TRUE(check_emulation(std::vector<WorkerLoad>{{"a", 0.5, 1.0}, {"b", 0.5, 1.0}}, 2, 1.0));
  EXPECT_TRUE(check_emulation(std::vector<WorkerLoad>{{"a", 5, {}}, {"b", 5, {}}}, 2, 1.0)) << "nothing is emulated";

  const Status slow = check_emulation(std::vector<WorkerLoad>{{"a", 0.1, 1.0}, {"b", 0.5, 0.25}}, 8, 1.0);
  ASSERT_FALSE(slow);
  EXPECT_EQ(slow.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(slow.error().message, HasSubstr("worker 'b'"));
  EXPECT_THAT(slow.error().message, HasSubstr("500 ms of CPU time in a step that should take 250 ms"));
  EXPECT_THAT(slow.error().message, HasSubstr("at least 2.00 times"));

  const Status busy = check_emulation(std::vector<WorkerLoad>{{"a", 0.75, 1.0}, {"b", 0.75, {}}}, 2, 1.0);
  ASSERT_FALSE(busy);
  EXPECT_THAT(busy.error().message, HasSubstr("1.5 s of CPU time (a 750 ms, b 750 ms) in a step of 1 s"));
  EXPECT_THAT(busy.error().message, HasSubstr("at least 1.50 times"));
}

}  // namespace
}  // namespace motley::cluster
