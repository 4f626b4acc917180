// Workers of a stage finish together, whatever their speeds are, and what they learnt survives a checkpoint.
#include "motley/train/loop/stage_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/random.h"

namespace motley::train {
namespace {

constexpr std::uint32_t kBatch = 240;

planning::Plan three_and_one(double first_share) {
  planning::Plan plan;
  plan.layers = {"first", "second"};
  plan.batch = kBatch;
  plan.micro_batches = 8;
  plan.stages.push_back(
      {.first_layer = 0, .last_layer = 0, .replicas = {{"fast", 1, first_share}, {"slow", 2, (1 - first_share) / 2}}});
  plan.stages.push_back({.first_layer = 1, .last_layer = 1, .replicas = {{"fast", 1, 1.0}}});
  return plan;
}

data::BatchSplitOptions options(data::SplitPolicy policy = data::SplitPolicy::kDynamic) {
  return {.policy = policy, .batch = kBatch, .limits = std::vector<data::WorkerLimits>(4, {1, kBatch})};
}

// Steps of ranks that need these seconds a sample, and 1 ms besides.
void train(const StageLayout& layout, StageSplit& shares, std::uint64_t first, std::uint64_t steps,
           const std::vector<double>& seconds_per_sample, Random& random) {
  for (std::uint64_t step = first; step < first + steps; ++step) {
    std::vector<data::Observation> seen;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const std::uint32_t samples = layout.samples(rank, {0, kBatch});
      const double noise = 1 + 0.01 * (random.uniform() - 0.5);
      seen.push_back({samples, noise * (1e-3 + seconds_per_sample[static_cast<std::size_t>(rank)] * samples), 0.5});
    }
    ASSERT_TRUE(shares.observe(step, seen));
  }
}

double slowest(const StageLayout& layout, const std::vector<double>& seconds_per_sample) {
  double most = 0;
  for (const int rank : layout.list_ranks(0)) {
    most = std::max(most, seconds_per_sample[static_cast<std::size_t>(rank)] * layout.samples(rank, {0, kBatch}));
  }
  return most;
}

TEST(StageSplit, FollowMeasuredSpeedFromThePlansShares) {
  Random random(4);
  StageLayout layout(three_and_one(0.5));
  auto shares = *StageSplit::create(layout, options());
  EXPECT_EQ(layout.samples(0, {0, kBatch}), 120U) << "the plan's shares";
  const std::vector<double> speeds = {1e-4, 4e-4, 2e-4, 1e-4};
  train(layout, shares, 1, 100, speeds, random);
  // The speeds 4 : 1 : 2 divide 240 samples.
  EXPECT_LT(slowest(layout, speeds), 1.05 * kBatch / (1e4 + 2.5e3 + 5e3));
  EXPECT_EQ(layout.samples(3, {0, kBatch}), kBatch);
  EXPECT_GT(shares.moves(), 0U);
  EXPECT_THAT(shares.reason(), testing::StartsWith("stage 0: "));

  // And when they change.
  const std::vector<double> changed = {3e-4, 1e-4, 2e-4, 1e-4};
  train(layout, shares, 101, 200, changed, random);
  EXPECT_LT(slowest(layout, changed), 1.05 * kBatch / (1e4 / 3 + 1e4 + 5e3));
}

TEST(StageSplit, StayThePlansWhereThatIsAsked) {
  Random random(5);
  StageLayout layout(three_and_one(0.25));
  auto shares = *StageSplit::create(layout, options(data::SplitPolicy::kFixed));
  train(layout, shares, 1, 50, {1e-4, 4e-4, 2e-4, 1e-4}, random);
  EXPECT_EQ(layout.samples(0, {0, kBatch}), 60U);
  EXPECT_EQ(shares.moves(), 0U);
}

TEST(StageSplit, ComeBackFromACheckpointOfTheSamePlan) {
  Random random(6);
  StageLayout layout(three_and_one(0.5));
  auto shares = *StageSplit::create(layout, options());
  train(layout, shares, 1, 60, {1e-4, 4e-4, 2e-4, 1e-4}, random);

  StageLayout again(three_and_one(0.5));
  auto restored = *StageSplit::create(again, options());
  EXPECT_TRUE(*restored.restore(shares.save()));
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(again.samples(rank, {0, kBatch}), layout.samples(rank, {0, kBatch}));
  EXPECT_EQ(restored.save(), shares.save());

  StageLayout other(three_and_one(0.4));
  auto fresh = *StageSplit::create(other, options());
  EXPECT_FALSE(*fresh.restore(shares.save()));
  EXPECT_EQ(other.samples(0, {0, kBatch}), 96U);
  EXPECT_EQ(fresh.restore("{}").error().code, ErrorCode::kCorrupt);
}

TEST(StageSplit, MoreWorkersThanSamplesAreAllowed) {
  StageLayout layout(three_and_one(0.5));
  data::BatchSplitOptions tiny = options();
  tiny.batch = 2;
  ASSERT_TRUE(StageSplit::create(layout, tiny));
  std::uint32_t samples = 0;
  for (const int rank : layout.list_ranks(0)) samples += layout.samples(rank, {0, 2});
  EXPECT_EQ(samples, 2U);
}

TEST(StageSplit, LimitsThatNoSplitSatisfiesAreRefused) {
  StageLayout layout(three_and_one(0.5));
  data::BatchSplitOptions tight = options();
  for (data::WorkerLimits& limits : tight.limits) limits.maximum = 50;
  const auto refused = StageSplit::create(layout, tight);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("stages[0]"));
}

}  // namespace
}  // namespace motley::train
