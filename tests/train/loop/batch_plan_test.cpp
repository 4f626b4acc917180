// Windows of the ledger, shares of the split, what comes after them, and what is kept of them.
#include "motley/train/loop/batch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/train/loop/fakes.h"

namespace motley::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(BatchPlan, RanksSplitTheWindowsOfAnEpoch) {
  auto plan = make_batch_plan({.mode = "equal"}, 30);
  ASSERT_TRUE(plan) << plan.error().message;
  std::set<std::uint32_t> used;
  std::vector<std::size_t> sizes;
  for (std::int64_t number = 1; number <= 3; ++number) {
    const auto step = plan->next(number);
    ASSERT_TRUE(step) << step.error().message;
    EXPECT_EQ(step->number, number);
    EXPECT_EQ(step->ledger, plan->ledger());
    for (const int rank : {0, 1}) {
      const auto samples = plan->samples(*step, rank);
      sizes.push_back(samples.size());
      used.insert(samples.begin(), samples.end());
    }
    EXPECT_EQ(plan->is_last_of_epoch(step->window), number == 3);
    const auto ended = plan->commit(*step);
    ASSERT_TRUE(ended) << ended.error().message;
    EXPECT_EQ(*ended, number == 3);
  }
  EXPECT_THAT(sizes, ElementsAre(6, 6, 6, 6, 3, 3));
  EXPECT_EQ(used.size(), 30U);
  EXPECT_EQ(plan->ledger().epoch, 1U);
  EXPECT_EQ(plan->epochs_at(15), 1.5);
}

TEST(BatchPlan, KnowsTheSamplesOfComingWindows) {
  auto plan = make_batch_plan({.mode = "equal"}, 42);
  const auto first = plan->next(1);
  const auto next = plan->samples_ahead(*first, 1, 1);
  const auto after_next = plan->samples_ahead(*first, 1, 2);
  EXPECT_THAT(plan->samples_ahead(*first, 1, 3), IsEmpty());  // a short window
  for (const auto& expected : {next, after_next}) {
    ASSERT_TRUE(plan->commit(*plan->next(1)));
    EXPECT_EQ(plan->samples(*plan->next(1), 1), expected);
  }
}

TEST(BatchPlan, SomeStepsHaveTheEqualSplit) {
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kFixed;
  split.batch = 12;
  split.limits.resize(2);
  split.proportions = {1, 2};
  auto plan = BatchPlan::create({.baseline_every = 4, .baseline_steps = 2, .mode = "fixed"}, split,
                                data::LedgerState{.size = 1200});
  ASSERT_TRUE(plan) << plan.error().message;
  std::vector<std::uint32_t> shares;
  for (std::int64_t number = 1; number <= 8; ++number) {
    const auto step = plan->next(number);
    shares.push_back(step->plan.shares[0]);
    EXPECT_EQ(step->baseline, plan->is_baseline(number));
    EXPECT_EQ(plan->mode(*step), step->baseline ? "equal" : "fixed");
  }
  EXPECT_THAT(shares, ElementsAre(4, 4, 4, 4, 6, 6, 4, 4));
}

TEST(BatchPlan, TheEqualSplitKeepsToLimits) {
  std::vector<data::WorkerLimits> limits(3);
  limits[0].maximum = 2;
  EXPECT_THAT(equal_split(12, limits), ElementsAre(2, 6, 4));
  EXPECT_THAT(equal_split(11, std::vector<data::WorkerLimits>(3)), ElementsAre(4, 4, 3));
  // Ranks that are not there have none, and each that has some has enough.
  limits.assign(4, {});
  limits[1] = {.minimum = 0, .maximum = 0};
  EXPECT_THAT(equal_split(255, limits), ElementsAre(85, 0, 85, 85));
  limits.assign(4, {.minimum = 2});
  EXPECT_THAT(equal_split(5, limits), ElementsAre(3, 2, 0, 0));
  EXPECT_THAT(equal_split(1, limits), ElementsAre(1, 0, 0, 0));
  limits[2].minimum = 128;  // that one is to have many is no reason for others to have none
  EXPECT_THAT(equal_split(256, limits), ElementsAre(64, 64, 64, 64));
}

// Whoever is lost in whatever order, each position of the window has one rank, and nobody loses what it had.
TEST(WindowParts, AreHandedToThoseWhoAreLeft) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Step step;
    std::vector<int> left;
    for (int rank = 0; rank < 2 + round % 6; ++rank) {
      left.push_back(rank);
      step.plan.shares.push_back(random() % 3 == 0 ? 0 : random() % 40);
      step.window.end += step.plan.shares.back();
    }
    WindowParts parts = cut_window(step);
    while (left.size() > 1) {
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(random() % left.size()));
      if (left.size() > 1 && random() % 2 == 0) left.pop_back();
      const WindowParts before = parts;
      hand_over(parts, left, step.plan.shares);
      std::vector<int> owners(step.window.size(), 0);
      for (int rank = 0; rank < std::ssize(parts); ++rank) {
        const auto& own = parts[static_cast<std::size_t>(rank)];
        ASSERT_TRUE(own.empty() || std::ranges::find(left, rank) != left.end()) << "round " << round;
        for (const data::Range& range : own) {
          ASSERT_GT(range.size(), 0U);
          for (std::uint32_t at = range.begin; at < range.end; ++at) ++owners[at];
        }
      }
      ASSERT_THAT(owners, testing::Each(1)) << "round " << round;
      for (const int rank : left) {
        const auto& had = before[static_cast<std::size_t>(rank)];
        const auto& has = parts[static_cast<std::size_t>(rank)];
        ASSERT_TRUE(std::equal(had.begin(), had.end(), has.begin())) << "round " << round;
      }
    }
  }
}

TEST(WindowParts, AreHandedOverInProportionToShares) {
  Step step;
  step.window = {0, 100};
  step.plan.shares = {60, 20, 20};
  WindowParts parts = cut_window(step);
  hand_over(parts, std::vector<int>{0, 1}, step.plan.shares);
  EXPECT_EQ(parts[0], (std::vector<data::Range>{{0, 60}, {80, 95}}));
  EXPECT_EQ(parts[1], (std::vector<data::Range>{{60, 80}, {95, 100}}));
  EXPECT_TRUE(parts[2].empty());
}

TEST(BatchPlan, KeepsToThoseWhoAreLeft) {
  data::BatchSplitOptions split;
  split.policy = data::SplitPolicy::kDynamic;
  split.may_pull = false;
  split.batch = 60;
  split.limits.resize(3);
  auto plan = *BatchPlan::create({.mode = "dynamic"}, split, {1, 0, 0, 6000});
  ASSERT_TRUE(plan.keep_to(2, std::vector<int>{0, 2}));
  EXPECT_EQ(plan.next(2)->plan.shares, (data::BatchSplit{30, 0, 30}));
  // Nothing was ever measured of rank 1, and the others' speeds decide all the same.
  for (std::int64_t number = 2; number < 60; ++number) {
    const Step step = *plan.next(number);
    std::vector<data::Observation> measured(3);
    for (const int rank : {0, 2}) {
      const std::uint32_t samples = step.plan.shares[static_cast<std::size_t>(rank)];
      measured[static_cast<std::size_t>(rank)] = {samples, samples * (rank == 0 ? 1e-3 : 3e-3), 0};
    }
    ASSERT_TRUE(plan.observe(number, measured));
    ASSERT_TRUE(plan.commit(step));
  }
  EXPECT_EQ(plan.next(60)->plan.shares, (data::BatchSplit{45, 0, 15}));
}

TEST(BatchPlan, RanksOfAPlanComputeMicroBatchesOfTheirStage) {
  StageLayout layout(make_two_stages());
  data::BatchSplitOptions split;
  split.batch = 12;
  split.limits.resize(2);
  auto plan = BatchPlan::create({.mode = "dynamic"}, split, data::LedgerState{.seed = 3, .size = 36}, &layout);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto step = plan->next(1);
  EXPECT_THAT(step->plan.shares, ElementsAre(12, 12));
  EXPECT_EQ(plan->mode(*step), "plan");
  EXPECT_EQ(plan->samples(*step, 0).size(), 12U);
  EXPECT_EQ(plan->samples(*step, 0), plan->samples(*step, 1));
  EXPECT_FALSE(plan->figures().predicted);
  layout = StageLayout([] {
    planning::Plan predicted = make_two_stages();
    predicted.predicted.step_seconds = 2;
    return predicted;
  }());
  EXPECT_EQ(plan->figures().predicted, 2);
}

TEST(BatchPlan, GoesOnWhereItWasSaved) {
  auto plan = make_batch_plan();
  ASSERT_TRUE(plan->commit(*plan->next(1)));
  SavedState saved;
  plan->save(saved);
  EXPECT_EQ(saved.ledger.cursor, 12U);
  auto other = make_batch_plan();
  const auto restored = other->restore(saved);
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_TRUE(*restored);
  EXPECT_EQ(other->samples(*other->next(2), 0), plan->samples(*plan->next(2), 0));

  saved.partition.clear();
  EXPECT_FALSE(*other->restore(saved));  // of a planned run
  auto larger = make_batch_plan({.mode = "equal"}, 37);
  const auto refused = larger->restore(saved);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("36 training samples, the data has 37"));
}

}  // namespace
}  // namespace motley::train
