// Every row of a window is computed once in each stage, and finds its way from each stage to the next.
#include "motley/train/stage_layout.h"

#include <gtest/gtest.h>

#include "motley/base/random.h"

namespace motley::train {
namespace {

plan::Plan random_plan(Random& random) {
  plan::Plan plan;
  plan.micro_batches = 1 + static_cast<std::int64_t>(random.below(6));
  const auto stages = 1 + static_cast<int>(random.below(4));
  for (int stage = 0; stage < stages; ++stage) {
    plan::Stage& added = plan.stages.emplace_back();
    added.first_layer = added.last_layer = stage;
    double sum = 0;
    const std::uint64_t groups = 1 + random.below(3);
    for (std::uint64_t group = 0; group < groups; ++group) {
      added.replicas.push_back(
          {fmt::format("type-{}", group), 1 + static_cast<std::int64_t>(random.below(3)), 0.05 + random.uniform()});
      sum += static_cast<double>(added.replicas.back().count) * added.replicas.back().share;
    }
    for (plan::Replicas& replicas : added.replicas) replicas.share /= sum;
  }
  return plan;
}

TEST(StageLayout, EveryRowGoesThroughEveryStageOnce) {
  Random random(3);
  for (int trial = 0; trial < 500; ++trial) {
    const StageLayout layout(random_plan(random));
    const auto begin = static_cast<std::uint32_t>(random.below(1000));
    const data::Range window{begin, begin + 1 + static_cast<std::uint32_t>(random.below(100))};
    const auto micro_batches = layout.micro_batches(window);
    std::uint32_t at = window.begin;
    for (const data::Range& micro_batch : micro_batches) {
      EXPECT_EQ(micro_batch.begin, at);
      EXPECT_GT(micro_batch.size(), 0U);
      at = micro_batch.end;
    }
    EXPECT_EQ(at, window.end);
    int ranks = 0;
    for (int stage = 0; stage < layout.stages(); ++stage) {
      std::uint32_t samples = 0;
      for (const data::Range& micro_batch : micro_batches) {
        std::uint32_t row = 0;
        for (const int rank : layout.ranks_of(stage)) {
          const data::Range rows = layout.rows(rank, micro_batch.size());
          EXPECT_EQ(rows.begin, row);
          row = rows.end;
          for (const int other : {stage - 1, stage + 1}) {
            std::uint32_t covered = rows.begin;
            for (const auto& [peer, shared] : layout.pieces(rank, other, micro_batch.size())) {
              EXPECT_EQ(layout.stage_of(peer), other);
              EXPECT_EQ(shared.begin, covered);
              covered = shared.end;
            }
            const bool exists = other >= 0 && other < layout.stages();
            EXPECT_EQ(covered, exists ? rows.end : rows.begin);
          }
        }
        EXPECT_EQ(row, micro_batch.size());
      }
      for (const int rank : layout.ranks_of(stage)) {
        EXPECT_EQ(rank, ranks++);
        EXPECT_EQ(layout.stage_of(rank), stage);
        samples += layout.samples(rank, window);
      }
      EXPECT_EQ(samples, window.size());
    }
    EXPECT_EQ(layout.ranks(), ranks);
  }
}

TEST(StageLayout, SharesAreThoseOfThePlan) {
  plan::Plan plan;
  plan.micro_batches = 2;
  plan.stages.push_back({.first_layer = 0, .last_layer = 0, .replicas = {{"fast", 2, 0.375}, {"slow", 2, 0.125}}});
  const StageLayout layout(plan);
  EXPECT_EQ(layout.type_of(1), "fast");
  EXPECT_EQ(layout.type_of(2), "slow");
  EXPECT_EQ(layout.rows(0, 80), (data::Range{0, 30}));
  EXPECT_EQ(layout.rows(3, 80), (data::Range{70, 80}));
  EXPECT_EQ(layout.samples(1, {0, 160}), 60U);
}

}  // namespace
}  // namespace motley::train
