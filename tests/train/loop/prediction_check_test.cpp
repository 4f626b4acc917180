// A plan's prediction is held against the steps that come after the first few, and told once.
#include "motley/train/loop/prediction_check.h"

#include <gtest/gtest.h>

namespace motley::train {
namespace {

struct Told {
  int times = 0;
  PredictionCheck::Finding finding;
};

// Slow steps at first, which do not count, then those.
Told tell(const planning::Prediction& predicted, double seconds) {
  PredictionCheck check(predicted);
  Told told;
  for (std::size_t step = 0; step < 3 * PredictionCheck::kSteps; ++step) {
    if (const auto finding = check.observe(step < PredictionCheck::kSettlingSteps ? 100 : seconds)) {
      ++told.times;
      told.finding = *finding;
    }
  }
  return told;
}

TEST(PredictionCheck, SaysOnceByHowMuchAPlanWasWrong) {
  const Told wrong = tell({.step_seconds = 0.012}, 0.027);
  EXPECT_EQ(wrong.times, 1);
  EXPECT_TRUE(wrong.finding.is_wrong);
  EXPECT_EQ(wrong.finding.text, "a step takes 27 ms, and the plan predicts 12 ms: 125 % more than predicted");
  const Told fast = tell({.step_seconds = 0.02}, 0.01);
  EXPECT_TRUE(fast.finding.is_wrong);
  EXPECT_EQ(fast.finding.text, "a step takes 10 ms, and the plan predicts 20 ms: 50 % less than predicted");
}

TEST(PredictionCheck, IsRightWithinWhatWasExpected) {
  EXPECT_FALSE(tell({.step_seconds = 0.01}, 0.0105).finding.is_wrong);
  EXPECT_EQ(tell({.step_seconds = 0.01}, 0.01).finding.text,
            "a step takes 10 ms, and the plan predicts 10 ms: as predicted");
  const planning::Prediction unsure{.step_seconds = 0.01, .step_seconds_low = 0.008, .step_seconds_high = 0.015};
  EXPECT_FALSE(tell(unsure, 0.014).finding.is_wrong);
  EXPECT_EQ(tell(unsure, 0.014).finding.text,
            "a step takes 14 ms, and the plan predicts 10 ms: 40 % more than predicted, within the 8 ms to 15 ms that "
            "were expected");
  EXPECT_TRUE(tell(unsure, 0.016).finding.is_wrong);
}

TEST(PredictionCheck, WaitsForEnoughSteps) {
  PredictionCheck check({.step_seconds = 1});
  for (std::size_t step = 1; step < PredictionCheck::kSettlingSteps + PredictionCheck::kSteps; ++step) {
    EXPECT_FALSE(check.observe(2)) << step;
  }
  EXPECT_TRUE(check.observe(2));
}

}  // namespace
}  // namespace motley::train
