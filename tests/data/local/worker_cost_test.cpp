// The min-max split against brute force, and its refusals.
#include "motley/data/local/worker_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "motley/base/random.h"

namespace motley::data {
namespace {

// The best time over all splits, by trying them.
double brute_force(std::span<const WorkerCost> costs, std::span<const WorkerLimits> limits, std::uint32_t batch) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::uint32_t> shares(costs.size());
  const std::function<void(std::size_t, std::uint32_t)> place = [&](std::size_t worker, std::uint32_t left) {
    if (worker == costs.size()) {
      best = left == 0 ? std::min(best, step_seconds(costs, shares)) : best;
      return;
    }
    for (std::uint32_t b = limits[worker].minimum; b <= std::min(left, limits[worker].maximum); ++b) {
      shares[worker] = b;
      place(worker + 1, left - b);
    }
  };
  place(0, batch);
  return best;
}

TEST(MinMax, EqualsBruteForceOnRandomInstances) {
  Random random(7);
  int infeasible = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::size_t workers = 1 + random.below(4);
    const auto batch = static_cast<std::uint32_t>(random.below(18));
    std::vector<WorkerCost> costs;
    std::vector<WorkerLimits> limits;
    for (std::size_t i = 0; i < workers; ++i) {
      // Integers give ties; zero slopes and zero fixed parts are drawn often.
      const bool whole = random.below(2) == 0;
      const double fixed = random.below(3) == 0 ? 0 : whole ? double(random.below(6)) : 5 * random.uniform();
      const double slope = random.below(6) == 0 ? 0 : whole ? double(random.below(4)) : random.uniform();
      costs.push_back({fixed, slope});
      const auto minimum = static_cast<std::uint32_t>(random.below(4));
      limits.push_back({minimum, minimum + static_cast<std::uint32_t>(random.below(16))});
    }
    const double best = brute_force(costs, limits, batch);
    const auto split = solve_min_max(costs, limits, batch);
    ASSERT_EQ(split.has_value(), std::isfinite(best)) << "round " << round;
    if (!split) {
      ++infeasible;
      continue;
    }
    ASSERT_EQ(std::accumulate(split->shares.begin(), split->shares.end(), 0U), batch);
    for (std::size_t i = 0; i < workers; ++i) {
      ASSERT_GE(split->shares[i], limits[i].minimum);
      ASSERT_LE(split->shares[i], limits[i].maximum);
    }
    ASSERT_NEAR(split->seconds, best, 1e-9) << "round " << round;
    ASSERT_EQ(split->seconds, step_seconds(costs, split->shares));
    ASSERT_LE(split->bound, split->seconds);
  }
  EXPECT_GT(infeasible, 500);
}

TEST(MinMax, BoundIsTheClosedFormAndNearTheIntegerAnswer) {
  const std::vector<WorkerCost> costs = {{0, 0.0017}, {0.2074, 0.0017}};
  const auto split = solve_min_max(costs, std::vector<WorkerLimits>(2), 256);
  ASSERT_TRUE(split);
  EXPECT_EQ(split->shares, (std::vector<std::uint32_t>{189, 67}));
  EXPECT_NEAR(split->bound, (256 + 0.2074 / 0.0017) / (2 / 0.0017), 1e-12);
  EXPECT_NEAR(split->seconds, 0.3213, 1e-9);
}

TEST(MinMax, LargeBatchesStayOptimal) {
  Random random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<WorkerCost> costs(2 + random.below(62));
    for (WorkerCost& cost : costs) {
      cost = {random.uniform(), 1e-6 + 1e-3 * random.uniform()};
    }
    const auto batch = static_cast<std::uint32_t>(64 + random.below(2'000'000));
    const auto split = solve_min_max(costs, std::vector<WorkerLimits>(costs.size(), {0}), batch);
    ASSERT_TRUE(split);
    // Optimal exactly when taking one sample from a last worker makes another end no earlier.
    for (std::size_t i = 0; i < costs.size(); ++i) {
      ASSERT_GE(costs[i].seconds(split->shares[i] + 1), split->seconds);
    }
    ASSERT_LE(split->seconds - split->bound, 1.1e-3);
  }
}

TEST(MinMax, LeavesOutAWorkerWhoseFixedTimeIsTooLong) {
  const std::vector<WorkerCost> costs = {{0, 1}, {100, 0.001}};
  EXPECT_EQ(solve_min_max(costs, std::vector<WorkerLimits>(2, {0}), 10)->shares, (std::vector<std::uint32_t>{10, 0}));
}

TEST(MinMax, RefusalsNameTheSums) {
  const std::vector<WorkerCost> costs(3, {0, 1});
  const auto small = solve_min_max(costs, std::vector<WorkerLimits>(3, {2, 10}), 5);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message, testing::HasSubstr("batch of at least 6"));
  const auto large = solve_min_max(costs, std::vector<WorkerLimits>(3, {2, 10}), 31);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message, testing::HasSubstr("batch of at most 30"));
  EXPECT_FALSE(solve_min_max(costs, std::vector<WorkerLimits>(3, {4, 3}), 12));
}

}  // namespace
}  // namespace motley::data
