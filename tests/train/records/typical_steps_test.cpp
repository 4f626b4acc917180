// Which steps count for figures of speed, against hand-made runs.
#include "motley/train/records/typical_steps.h"

#include <gtest/gtest.h>

namespace motley::train {
namespace {

Metrics make_run(std::int64_t first, int steps) {
  Metrics metrics;
  for (int i = 0; i < steps; ++i) {
    metrics.steps.push_back({.step = first + i, .step_seconds = 1.0 + i, .mode = "dynamic", .compute_seconds = {1, 1}});
  }
  return metrics;
}

TEST(TypicalSteps, TheFirstTwentyAreLeftOutWhereFiveOthersAreThere) {
  for (const std::int64_t first : {0, 1}) {  // scripts count from 0, jobs from 1
    const Metrics run = make_run(first, 30);
    const TypicalSteps steps = choose_typical_steps(run, 2);
    EXPECT_TRUE(steps.is_settled);
    ASSERT_EQ(steps.own.size(), 10u);
    EXPECT_EQ(steps.own.front()->step, first + 20);
    // 21 to 30 seconds, of which 23 to 28 are the middle.
    EXPECT_DOUBLE_EQ(typical_seconds(steps.own), 25.5);
  }
  const Metrics brief = make_run(1, 24);
  EXPECT_FALSE(choose_typical_steps(brief, 2).is_settled);
  EXPECT_EQ(choose_typical_steps(brief, 2).own.size(), 24u);
  EXPECT_EQ(choose_typical_steps(Metrics(), 2).own.size(), 0u);
  EXPECT_EQ(typical_seconds({}), 0);
}

TEST(TypicalSteps, BaselineStepsAreApartAndSoAreThoseOfOtherWorkers) {
  Metrics run = make_run(1, 30);
  run.steps[25].baseline = true;
  run.steps[26].mode = "equal";
  run.steps[27].compute_seconds = {1};
  const TypicalSteps steps = choose_typical_steps(run, 2);
  EXPECT_EQ(steps.equal.size(), 2u);
  EXPECT_EQ(steps.own.size(), 7u);
  EXPECT_FALSE(steps.is_planned);
}

TEST(TypicalSteps, HaveTheCommonestSplitWhereThatIsCommon) {
  Metrics run = make_run(1, 60);
  for (StepMetrics& step : run.steps)
    step.batch_split = step.step <= 45 ? std::vector<std::int64_t>{8, 8} : std::vector<std::int64_t>{12, 4};
  EXPECT_EQ(choose_typical_steps(run, 2).own.size(), 25u) << "of the 40 settled ones";
  for (StepMetrics& step : run.steps) step.batch_split = {step.step % 9, 16 - step.step % 9};
  EXPECT_EQ(choose_typical_steps(run, 2).own.size(), 40u);
}

TEST(TypicalSteps, OfARunThatMovedThoseByItsLastPlan) {
  Metrics run = make_run(1, 60);
  for (StepMetrics& step : run.steps) {
    step.mode = "plan";
    step.predicted_seconds = step.step <= 40 ? 1.0 : 2.0;
  }
  const TypicalSteps steps = choose_typical_steps(run, 2);
  EXPECT_TRUE(steps.is_planned);
  ASSERT_EQ(steps.own.size(), 20u);
  EXPECT_EQ(steps.own.front()->step, 41);
}

TEST(TypicalSteps, AStallDoesNotCount) {
  Metrics run = make_run(1, 4);
  run.steps[2].step_seconds = 1e6;
  EXPECT_DOUBLE_EQ(typical_seconds(choose_typical_steps(run, 2).own), 3) << "of 1, 2, 4 and 1e6 those in the middle";
  run.steps.pop_back();
  EXPECT_GT(typical_seconds(choose_typical_steps(run, 2).own), 1e5) << "fewer than four all count";
}

}  // namespace
}  // namespace motley::train
