// Every row of a window is computed once in each stage, and finds its way from each stage to the next.
#include "motley/train/loop/stage_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "motley/base/random.h"

namespace motley::train {
namespace {

planning::Plan random_plan(Random& random) {
  planning::Plan plan;
  plan.micro_batches = 1 + static_cast<std::int64_t>(random.below(6));
  const auto stages = 1 + static_cast<int>(random.below(4));
  for (int stage = 0; stage < stages; ++stage) {
    planning::Stage& added = plan.stages.emplace_back();
    added.first_layer = added.last_layer = stage;
    double sum = 0;
    const std::uint64_t groups = 1 + random.below(3);
    for (std::uint64_t group = 0; group < groups; ++group) {
      added.replicas.push_back(
          {fmt::format("type-{}", group), 1 + static_cast<std::int64_t>(random.below(3)), 0.05 + random.uniform()});
      sum += static_cast<double>(added.replicas.back().count) * added.replicas.back().share;
    }
    for (planning::Replicas& replicas : added.replicas) replicas.share /= sum;
  }
  return plan;
}

TEST(StageLayout, RanksFillThePlacesThatTheyAreGiven) {
  Random random(4);
  for (int trial = 0; trial < 100; ++trial) {
    const planning::Plan plan = random_plan(random);
    const StageLayout in_order(plan);
    std::vector<int> places(static_cast<std::size_t>(in_order.ranks()));
    std::iota(places.begin(), places.end(), 0);
    EXPECT_EQ(in_order.places(), places);
    for (std::size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random.below(i)]);
    const StageLayout layout(plan, places);
    for (std::size_t place = 0; place < places.size(); ++place) {
      const auto at = static_cast<int>(place);
      EXPECT_EQ(layout.find_stage(places[place]), in_order.find_stage(at));
      EXPECT_EQ(layout.device_type(places[place]), in_order.device_type(at));
      EXPECT_NEAR(layout.share(places[place]), in_order.share(at), 1e-12);
    }
  }
}

TEST(StageLayout, SendersOfAStageHaveAsManyReceiversAsCanBe) {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const StageLayout layout(random_plan(random));
    for (int from = 0; from < layout.stages(); ++from) {
      const std::vector<int> senders = layout.list_ranks(from);
      const std::vector<int> receivers = layout.list_ranks(layout.stages() - 1);
      std::map<int, std::size_t> sends;
      for (const int rank : receivers) ++sends[layout.sender_to(rank, from)];
      for (const auto& [rank, count] : sends) {
        EXPECT_EQ(layout.find_stage(rank), from);
        EXPECT_LE(count, (receivers.size() + senders.size() - 1) / senders.size());
      }
      EXPECT_EQ(sends.size(), std::min(senders.size(), receivers.size()));
    }
  }
}

TEST(StageLayout, KnowsTheStagesWithALayer) {
  planning::Plan plan;
  for (const auto& [first, last] : {std::pair(0, 1), std::pair(2, 2), std::pair(3, 5)}) {
    plan.stages.push_back({.first_layer = first, .last_layer = last, .replicas = {{"type", 1, 1}}});
  }
  const StageLayout layout(plan);
  const auto stages = [&](std::vector<int> layers) { return layout.stages_with(layers); };
  EXPECT_EQ(stages({0}), (std::vector{0}));
  EXPECT_EQ(stages({0, 1}), (std::vector{0}));
  EXPECT_EQ(stages({1, 4, 5}), (std::vector{0, 2}));
  EXPECT_EQ(stages({0, 2, 3}), (std::vector{0, 1, 2}));
}

TEST(StageLayout, EveryRowGoesThroughEveryStageOnce) {
  Random random(3);
  for (int trial = 0; trial < 500; ++trial) {
    StageLayout layout(random_plan(random));
    if (trial % 2 == 1) {
      const int stage = static_cast<int>(random.below(static_cast<std::uint64_t>(layout.stages())));
      std::vector<double> weights;
      for (std::size_t i = 0; i < layout.list_ranks(stage).size(); ++i) {
        weights.push_back(i == 0 ? 1 : random.below(3) == 0 ? 0 : random.uniform());
      }
      layout.set_split(stage, weights);
    }
    const auto begin = static_cast<std::uint32_t>(random.below(1000));
    const data::Range window{begin, begin + 1 + static_cast<std::uint32_t>(random.below(100))};
    const auto micro_batches = layout.micro_batches(window);
    std::uint32_t at = window.begin;
    for (const StageLayout::MicroBatch& micro_batch : micro_batches) {
      EXPECT_EQ(micro_batch.positions.begin, at);
      EXPECT_GT(micro_batch.size(), 0U);
      at = micro_batch.positions.end;
    }
    EXPECT_EQ(at, window.end);
    int ranks = 0;
    for (int stage = 0; stage < layout.stages(); ++stage) {
      std::uint32_t samples = 0;
      for (const StageLayout::MicroBatch& micro_batch : micro_batches) {
        std::uint32_t row = 0;
        for (const int rank : layout.list_ranks(stage)) {
          const data::Range rows = layout.rows(rank, micro_batch);
          EXPECT_EQ(rows.begin, row);
          row = rows.end;
          for (const int other : {stage - 1, stage + 1}) {
            std::uint32_t covered = rows.begin;
            for (const auto& [peer, shared] : layout.pieces(rank, other, micro_batch)) {
              EXPECT_EQ(layout.find_stage(peer), other);
              EXPECT_EQ(shared.begin, covered);
              covered = shared.end;
            }
            const bool exists = other >= 0 && other < layout.stages();
            EXPECT_EQ(covered, exists ? rows.end : rows.begin);
          }
        }
        EXPECT_EQ(row, micro_batch.size());
      }
      for (const int rank : layout.list_ranks(stage)) {
        EXPECT_EQ(rank, ranks++);
        EXPECT_EQ(layout.find_stage(rank), stage);
        samples += layout.samples(rank, window);
      }
      EXPECT_EQ(samples, window.size());
    }
    EXPECT_EQ(layout.ranks(), ranks);
  }
}

// Ranks are lost one after the other, whenever, some of which have computed a part of what is left of the step. What
// goes through the stages after that is what any of them lacks, and in the end each has the gradient of every row once.
TEST(StageLayout, EveryStageHasTheGradientOfEveryRowOnceWhoeverIsLost) {
  Random random(9);
  int went_on = 0;
  for (int trial = 0; trial < 500; ++trial) {
    StageLayout layout(random_plan(random));
    const auto begin = static_cast<std::uint32_t>(random.below(1000));
    const data::Range window{begin, begin + 1 + static_cast<std::uint32_t>(random.below(60))};
    StageLayout::Kept kept;
    for (;;) {
      const auto micro_batches = layout.micro_batches(window, kept);
      for (int stage = 0; stage < layout.stages(); ++stage) {
        std::vector<int> times(window.size());
        for (const int rank : layout.list_ranks(stage)) {
          std::uint32_t rows = 0;
          for (const data::Range& range : layout.gradient_rows(rank, window, kept)) {
            for (std::uint32_t position = range.begin; position < range.end; ++position) ++times[position - begin];
            rows += range.size();
          }
          EXPECT_EQ(layout.samples(rank, window, kept), rows);
        }
        EXPECT_EQ(times, std::vector<int>(window.size(), 1)) << "stage " << stage;
      }
      for (const StageLayout::MicroBatch& part : micro_batches) {
        EXPECT_GT(part.size(), 0U);
        EXPECT_TRUE(part.goes_back_to(layout.stages() - 1));
        EXPECT_EQ(part.goes_back_to(0), part.lacks(0));
      }

      StageLayout::Kept next(static_cast<std::size_t>(layout.ranks()));
      std::vector<int> left;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        if (layout.find_stage(rank) < 0) continue;
        left.push_back(rank);
        auto& own = next[static_cast<std::size_t>(rank)];
        if (!kept.empty()) own = kept[static_cast<std::size_t>(rank)];
        const auto done = static_cast<std::ptrdiff_t>(random.below(micro_batches.size() + 1));
        for (auto part = micro_batches.begin(); part != micro_batches.begin() + done; ++part) {
          if (part->lacks(layout.find_stage(rank))) own.push_back(layout.positions(rank, *part));
        }
      }
      const int lost = left[random.below(left.size())];
      std::erase(left, lost);
      if (!layout.suits(left)) break;
      layout.keep_to(left);
      next[static_cast<std::size_t>(lost)].clear();
      kept = std::move(next);
      ++went_on;
    }
  }
  EXPECT_GT(went_on, 500);
}

TEST(StageLayout, OfABrokenStepOnlyWhatAStageLacksGoesThroughAgain) {
  planning::Plan plan;
  plan.micro_batches = 2;
  plan.stages.push_back({.first_layer = 0, .last_layer = 0, .replicas = {{"cpu", 2, 0.5}}});
  plan.stages.push_back({.first_layer = 1, .last_layer = 1, .replicas = {{"cpu", 2, 0.5}}});
  StageLayout layout(plan);
  layout.keep_to(std::vector{0, 2, 3});
  // Of two micro-batches of eight rows the second stage has done both, the first stage's rank 0 only one.
  const StageLayout::Kept kept = {{{0, 4}}, {}, {{0, 4}, {8, 12}}, {{4, 8}, {12, 16}}};
  const auto left = layout.micro_batches({0, 16}, kept);
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].positions, (data::Range{4, 8}));
  EXPECT_EQ(left[1].positions, (data::Range{8, 16}));
  for (const StageLayout::MicroBatch& part : left) {
    EXPECT_TRUE(part.lacks(0));
    EXPECT_FALSE(part.lacks(1));
    EXPECT_TRUE(part.goes_back_to(1));
  }
  EXPECT_EQ(layout.samples(0, {0, 16}, kept), 16U);
  EXPECT_EQ(layout.samples(2, {0, 16}, kept), 8U);
}

TEST(StageLayout, SharesAreThoseOfThePlan) {
  planning::Plan plan;
  plan.micro_batches = 2;
  plan.stages.push_back({.first_layer = 0, .last_layer = 0, .replicas = {{"fast", 2, 0.375}, {"slow", 2, 0.125}}});
  const StageLayout layout(plan);
  EXPECT_EQ(layout.device_type(1), "fast");
  EXPECT_EQ(layout.device_type(2), "slow");
  EXPECT_EQ(layout.rows(0, {{0, 80}}), (data::Range{0, 30}));
  EXPECT_EQ(layout.rows(3, {{0, 80}}), (data::Range{70, 80}));
  EXPECT_EQ(layout.samples(1, {0, 160}), 60U);
}

// However small micro-batches are, a step as a whole is cut where the shares say.
TEST(StageLayout, ManySmallMicroBatchesAddUpToTheShares) {
  Random random(8);
  for (int trial = 0; trial < 200; ++trial) {
    planning::Plan plan;
    plan.micro_batches = 1 + static_cast<std::int64_t>(random.below(20));
    const std::uint32_t rows = 1 + static_cast<std::uint32_t>(random.below(7));
    plan.stages.push_back({.first_layer = 0, .last_layer = 0, .replicas = {{"cpu", 3, 1.0 / 3}}});
    StageLayout layout(plan);
    const auto batch = static_cast<std::uint32_t>(plan.micro_batches) * rows;
    const std::uint64_t first = random.below(batch + 1);
    const std::uint64_t second = random.below(batch - first + 1);
    const double weights[] = {static_cast<double>(first), static_cast<double>(second),
                              static_cast<double>(batch - first - second)};
    layout.set_split(0, weights);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(layout.samples(rank, {0, batch}), weights[rank]) << rows << " rows a micro-batch, rank " << rank;
      EXPECT_NEAR(layout.share(rank), weights[rank] / batch, 1e-12);
    }
  }
}

}  // namespace
}  // namespace motley::train
