// The partition's decisions on simulated workers whose true costs are known: it finds the optimum fast and again after
// changes, noise moves nothing, it is never slower than equal shares for long, and it pulls exactly where that pays.
#include "motley/data/local/batch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "motley/base/random.h"
#include "motley/data/local/ledger.h"

namespace motley::data {
namespace {

using testing::HasSubstr;

BatchSplitOptions options_for(std::size_t workers, std::uint32_t batch) {
  BatchSplitOptions options;
  options.batch = batch;
  options.limits.resize(workers);
  return options;
}

// Seconds of worker i for b samples in a step.
using Times = std::function<double(std::size_t worker, std::uint32_t samples)>;

double find_last(const Times& times, const BatchSplit& shares) {
  double last = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    last = std::max(last, times(i, shares[i]));
  }
  return last;
}

// One step as real workers would do it; returns the seconds until the last one is done.
double run_step(BatchSplitter& partition, std::uint64_t step, const Times& times, double common = 0) {
  const std::uint32_t batch = partition.options().batch;
  const StepPlan plan = *partition.plan(step, batch);
  std::vector<Observation> seen(partition.workers());
  if (plan.pulls()) {
    const PullPlan pull({0, batch}, plan.shards);
    std::vector<double> delay(seen.size());
    for (std::size_t i = 0; i < seen.size(); ++i) {
      seen[i].seconds = delay[i] = times(i, 0);  // what a worker takes before its first sample
    }
    for (std::uint32_t shard = 0; shard < pull.shards(); ++shard) {
      const auto first = std::min_element(seen.begin(), seen.end(),
                                          [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
      const auto i = static_cast<std::size_t>(first - seen.begin());
      first->samples += pull.shard(shard).size();
      first->seconds += times(i, pull.shard(shard).size()) - delay[i];
    }
  } else {
    EXPECT_EQ(std::accumulate(plan.shares.begin(), plan.shares.end(), 0U), batch);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      seen[i] = {plan.shares[i], plan.shares[i] > 0 ? times(i, plan.shares[i]) : 0};
    }
  }
  double last = 0;
  for (const Observation& worker : seen) {
    last = std::max(last, worker.seconds);
  }
  for (Observation& worker : seen) {
    worker.wait = last + common - worker.seconds;
  }
  EXPECT_TRUE(partition.observe(step, seen));
  return last + common;
}

std::vector<WorkerCost> random_costs(Random& random, std::size_t workers) {
  std::vector<WorkerCost> costs(workers);
  for (WorkerCost& cost : costs) {
    cost = {0.02 * random.uniform(), 0.001 * std::exp(1.6 * random.uniform())};
  }
  return costs;
}

TEST(BatchSplitter, FindsTheOptimumWithinTenStepsAndAgainAfterEachShift) {
  Random random(21);
  for (int round = 0; round < 200; ++round) {
    const std::size_t workers = 2 + random.below(5);
    auto partition = BatchSplitter::create(options_for(workers, 512));
    ASSERT_TRUE(partition);
    std::vector<WorkerCost> costs = random_costs(random, workers);
    for (std::uint64_t step = 0; step < 240; ++step) {
      if (step > 0 && step % 60 == 0) {
        // One worker changes: another speed, or a delay that comes or goes.
        WorkerCost& changed = costs[random.below(workers)];
        changed = random.below(2) == 0 ? WorkerCost{changed.fixed, changed.per_sample * (0.4 + 2 * random.uniform())}
                                       : WorkerCost{0.1 * random.uniform(), changed.per_sample};
      }
      run_step(*partition, step,
               [&](std::size_t i, std::uint32_t b) { return costs[i].seconds(b) * (1 + 0.005 * random.normal()); });
      if (step % 60 >= 10) {
        const auto best = solve_min_max(costs, partition->options().limits, 512);
        ASSERT_LE(step_seconds(costs, partition->shares()), 1.05 * best->seconds)
            << "round " << round << " step " << step << ": " << partition->diagnostics().reason;
      }
    }
  }
}

TEST(BatchSplitter, FollowsACurvedCost) {
  // A device that is saturated only from 64 samples on: below, the time is flat.
  const Times times = [](std::size_t i, std::uint32_t b) {
    return i == 0 ? 0.001 * std::max(64U, b) : 0.004 * std::max(16U, b);
  };
  auto partition = BatchSplitter::create(options_for(2, 256));
  for (std::uint64_t step = 0; step < 40; ++step) {
    run_step(*partition, step, times);
  }
  EXPECT_LE(find_last(times, partition->shares()), 1.05 * 0.205);
}

TEST(BatchSplitter, NoiseMovesNothing) {
  for (const double noise : {0.01, 0.05, 0.10}) {
    std::uint64_t moves = 0;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      Random random(seed);
      BatchSplitOptions options = options_for(4, 256);
      options.may_pull = noise < 0.1;  // so much noise is worth pulling for
      auto partition = BatchSplitter::create(options);
      for (std::uint64_t step = 0; step < 1000; ++step) {
        run_step(*partition, step,
                 [&](std::size_t, std::uint32_t b) { return 0.001 * b * std::max(0.3, 1 + noise * random.normal()); });
      }
      moves += partition->diagnostics().moves;
      for (const std::uint32_t share : partition->shares()) {
        EXPECT_NEAR(share, 64, 256 * 0.03);
      }
    }
    EXPECT_LE(moves, noise < 0.02 ? 0U : 3U) << noise << " in 12,000 steps";
  }
}

TEST(BatchSplitter, SingleStallsMoveNothing) {
  auto partition = BatchSplitter::create(options_for(2, 256));
  for (std::uint64_t step = 0; step < 500; ++step) {
    run_step(*partition, step,
             [&](std::size_t i, std::uint32_t b) { return 0.001 * b * (step % 23 == 7 + i || step == 0 ? 8 : 1); });
  }
  EXPECT_EQ(partition->diagnostics().moves, 0U);
}

TEST(BatchSplitter, StaysEqualWhereSharesDoNotMatter) {
  // A loader that both share bounds the step; or the exchange takes nearly all of it.
  auto loader_bound = BatchSplitter::create(options_for(2, 256));
  auto exchange_bound = BatchSplitter::create(options_for(2, 256));
  for (std::uint64_t step = 0; step < 300; ++step) {
    run_step(*loader_bound, step, [](std::size_t i, std::uint32_t b) {
      return std::max(0.06, 0.0002 * b * (1.0 + static_cast<double>(i)));
    });
    run_step(
        *exchange_bound, step,
        [](std::size_t i, std::uint32_t b) { return 0.0001 * b * (1 + 0.5 * static_cast<double>(i)); }, 1.0);
  }
  EXPECT_EQ(loader_bound->diagnostics().moves, 0U);
  EXPECT_EQ(exchange_bound->diagnostics().moves, 0U);
  EXPECT_THAT(exchange_bound->diagnostics().reason, HasSubstr("stays at 128/128"));
  EXPECT_NEAR(exchange_bound->diagnostics().common, 1.0, 1e-9);
}

TEST(BatchSplitter, UndoesMovesThatDidNotPay) {
  // The fit is misled: worker 0 gets slower for everyone's sake the more it is given beyond half.
  const Times times = [](std::size_t i, std::uint32_t b) {
    return i == 0 ? (b <= 128 ? 0.1 : 0.25) : (b < 128 ? 0.16 : 0.15);
  };
  auto partition = BatchSplitter::create(options_for(2, 256));
  double total = 0;
  const int steps = 4000;
  for (std::uint64_t step = 0; step < steps; ++step) {
    total += run_step(*partition, step, times);
  }
  EXPECT_LE(total / (steps * 0.15), 1.02);
  EXPECT_LE(find_last(times, partition->shares()), 0.16);
}

// A worker that stalls just when a trial ends leaves it in doubt; the trial is judged once that is settled.
TEST(BatchSplitter, UndoesMovesThatDidNotPayWhereAStallEndsTheTrial) {
  auto partition = BatchSplitter::create(options_for(2, 256));
  BatchSplit shares;
  int steps_here = 0, slower_steps = 0;
  const int steps = 4000;
  for (std::uint64_t step = 0; step < steps; ++step) {
    steps_here = partition->shares() == shares ? steps_here + 1 : 1;
    shares = partition->shares();
    slower_steps += shares[0] > 128 ? 1 : 0;
    run_step(*partition, step, [&](std::size_t i, std::uint32_t b) {
      if (i == 1) return (b < 128 ? 0.16 : 0.15) * (steps_here == 6 ? 1.5 : 1);
      return b <= 128 ? 0.1 : 0.25;
    });
  }
  EXPECT_LT(slower_steps, steps / 10);
}

TEST(BatchSplitter, KeepsLimitsAndTriesIdleWorkersAgain) {
  BatchSplitOptions options = options_for(3, 300);
  options.limits = {{0, 300}, {2, 120}, {0, 300}};
  auto partition = BatchSplitter::create(options);
  bool left_out = false, came_back = false;
  for (std::uint64_t step = 0; step < 1200; ++step) {
    // Worker 2 has a fixed time that never pays, until step 500.
    run_step(*partition, step, [&](std::size_t i, std::uint32_t b) {
      return i == 2 && step < 500 ? 2.0 + 0.001 * b : (i == 1 ? 0.0002 : 0.001) * b;
    });
    const BatchSplit& shares = partition->shares();
    ASSERT_LE(shares[1], 120U);
    ASSERT_GE(shares[1], 2U);
    left_out = left_out || (step < 500 && shares[2] == 0);
    came_back = came_back || (step > 500 && left_out && shares[2] > 50);
  }
  EXPECT_TRUE(left_out);
  EXPECT_TRUE(came_back);
  EXPECT_EQ(partition->shares()[1], 120U);
}

// Exponential delays at the start of worker 1's steps while `delayed`; on both workers at once when `common`.
struct RandomDelays {
  Random random{5};
  std::uint64_t step = ~std::uint64_t{0};
  double delay = 0;
  double operator()(std::uint64_t now, bool delayed) {
    if (step != now) {
      step = now;
      delay = random.exponential(0.25);
    }
    return delayed ? delay : 0;
  }
};

TEST(BatchSplitter, KeepsToLimitsThatComeLater) {
  const Times times = [](std::size_t worker, std::uint32_t samples) {
    return 0.01 + samples * (worker == 0 ? 0.001 : 0.004);
  };
  auto options = options_for(2, 100);
  options.may_pull = false;
  auto partition = *BatchSplitter::create(std::move(options));
  std::uint64_t step = 0;
  while (step < 20) run_step(partition, step++, times);
  EXPECT_EQ(partition.shares(), (BatchSplit{80, 20}));

  const auto refused = partition.limit(step, {{0, 50}, {0, 49}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("99"));
  EXPECT_EQ(partition.shares(), (BatchSplit{80, 20}));

  ASSERT_TRUE(partition.limit(step, {{0, 60}, {0, 100}}));
  while (step < 40) {
    EXPECT_EQ(partition.plan(step, 100)->shares, (BatchSplit{60, 40}));
    EXPECT_LE(partition.plan(step, 90)->shares[0], 60U);
    run_step(partition, step++, times);
  }
  // Limits that the shares keep to change nothing at once, and wider ones let them go back.
  ASSERT_TRUE(partition.limit(step, {{0, 100}, {0, 100}}));
  EXPECT_EQ(partition.shares(), (BatchSplit{60, 40}));
  while (step < 60) run_step(partition, step++, times);
  EXPECT_EQ(partition.shares(), (BatchSplit{80, 20}));
}

// A worker goes, and another one, of another speed, takes its place.
TEST(BatchSplitter, ANewWorkerGetsMoreAsItsSpeedIsMeasured) {
  double third = 0.008;
  const Times times = [&third](std::size_t worker, std::uint32_t samples) {
    return 0.01 + samples * (worker == 2 ? third : 0.002);
  };
  for (const auto policy : {SplitPolicy::kDynamic, SplitPolicy::kEqual, SplitPolicy::kFixed}) {
    SCOPED_TRACE(to_string(policy));
    auto options = options_for(3, 120);
    options.policy = policy;
    options.may_pull = false;
    if (policy == SplitPolicy::kFixed) options.proportions = {2, 1, 3};
    auto partition = *BatchSplitter::create(std::move(options));
    std::uint64_t step = 0;
    while (step < 20) run_step(partition, step++, times);
    const BatchSplit all = partition.shares();

    ASSERT_TRUE(partition.limit(step, {{0, 120}, {0, 120}, {0, 0}}));
    while (step < 40) run_step(partition, step++, times);
    EXPECT_EQ(partition.shares()[2], 0U);

    third = 0.002;
    ASSERT_TRUE(partition.limit(step, {{0, 120}, {0, 120}, {0, 120}}));
    if (policy != SplitPolicy::kDynamic) {
      EXPECT_EQ(partition.shares(), all);  // which do not depend on its speed
      continue;
    }
    EXPECT_GT(partition.shares()[2], 0U);
    EXPECT_LE(partition.shares()[2], 10U);  // a quarter of an equal share
    while (step < 60) run_step(partition, step++, times);
    EXPECT_EQ(partition.shares(), (BatchSplit{40, 40, 40}));
  }
}

// Two that go on from what one of them has saved decide alike, whatever they have seen before.
TEST(BatchSplitter, WhoRestoresDecidesAsWhoHasSaved) {
  const Times times = [](std::size_t worker, std::uint32_t samples) { return 0.01 + samples * (worker + 1) * 0.001; };
  auto one = *BatchSplitter::create(options_for(3, 120));
  auto other = *BatchSplitter::create(options_for(3, 120));
  std::uint64_t step = 0;
  while (step < 5) run_step(one, step++, times);  // in the middle of what it learns
  const std::string saved = one.save();
  ASSERT_TRUE(*one.restore(saved));
  ASSERT_TRUE(*other.restore(saved));
  for (; step < 60; ++step) {
    EXPECT_EQ(one.plan(step, 120)->shares, other.plan(step, 120)->shares) << step;
    run_step(one, step, times);
    run_step(other, step, times);
  }
}

TEST(BatchSplitter, PullsUnderRandomDelaysAndStopsWhenTheyEnd) {
  auto partition = BatchSplitter::create(options_for(2, 256));
  RandomDelays delays;
  bool pulled = false;
  double ours = 0, equal = 0;
  for (std::uint64_t step = 0; step < 1500; ++step) {
    const Times times = [&](std::size_t i, std::uint32_t b) {
      return (i == 1 ? delays(step, step < 1000) : 0) + 0.0017 * b;
    };
    const double seconds = run_step(*partition, step, times);
    pulled = pulled || partition->pulling();
    ours += step < 1000 ? seconds : 0;
    equal += step < 1000 ? find_last(times, {128, 128}) : 0;
  }
  EXPECT_TRUE(pulled);
  EXPECT_LT(ours, 0.9 * equal);
  EXPECT_FALSE(partition->pulling());
  EXPECT_NEAR(partition->shares()[0], 128, 8);
}

TEST(BatchSplitter, DoesNotPullWhereAllAreDelayedAlike) {
  auto partition = BatchSplitter::create(options_for(2, 256));
  RandomDelays delays;
  for (std::uint64_t step = 0; step < 500; ++step) {
    run_step(*partition, step, [&](std::size_t, std::uint32_t b) { return delays(step, true) + 0.0017 * b; });
    ASSERT_FALSE(partition->pulling());
  }
}

TEST(BatchSplitter, StopsPullingThatProvesSlower) {
  // Shards cost far more than the fit can know: small ones take as long as large ones.
  auto partition = BatchSplitter::create(options_for(2, 256));
  RandomDelays delays;
  int pulled = 0;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    run_step(*partition, step, [&](std::size_t i, std::uint32_t b) {
      const bool shard = b > 0 && b < 40;
      return (i == 1 ? delays(step, true) : 0) + (shard ? 0.2 : 0.0017 * b);
    });
    pulled += partition->pulling() ? 1 : 0;
  }
  EXPECT_GT(pulled, 0);
  EXPECT_LT(pulled, 100);
}

TEST(BatchSplitter, EveryRankDecidesTheSameAndARestoredOneGoesOn) {
  Random random(31);
  const auto options = options_for(4, 256);
  auto first = BatchSplitter::create(options);
  auto second = BatchSplitter::create(options);
  for (std::uint64_t step = 0; step < 400; ++step) {
    std::vector<Observation> seen;
    const StepPlan plan = *first->plan(step, 256);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t samples = plan.pulls() ? 64 : plan.shares[i];
      const double speed = step > 200 && i == 0 ? 3 : 1;
      seen.push_back({samples, speed * 0.001 * samples * (1 + static_cast<double>(i)) * (1 + 0.05 * random.normal())});
    }
    ASSERT_TRUE(first->observe(step, seen));
    ASSERT_TRUE(second->observe(step, seen));
    ASSERT_EQ(first->save(), second->save());
  }
  auto third = BatchSplitter::create(options);
  EXPECT_TRUE(third->restore(first->save()).value());
  EXPECT_EQ(third->save(), first->save());
  EXPECT_EQ(third->shares(), first->shares());
  auto other = BatchSplitter::create(options_for(3, 256));
  EXPECT_FALSE(other->restore(first->save()).value());
  EXPECT_FALSE(first->restore("{}"));
  EXPECT_FALSE(first->restore(first->save().substr(1)));
}

TEST(BatchSplitter, ShortWindowsKeepProportionsAndMinimums) {
  BatchSplitOptions options = options_for(3, 300);
  options.policy = SplitPolicy::kFixed;
  options.proportions = {3, 2, 1};
  options.limits = {{2}, {2}, {2}};
  const auto partition = BatchSplitter::create(options);
  ASSERT_TRUE(partition);
  EXPECT_EQ(partition->plan(0, 300)->shares, (BatchSplit{150, 100, 50}));
  EXPECT_EQ(partition->plan(0, 60)->shares, (BatchSplit{30, 20, 10}));
  EXPECT_EQ(partition->plan(0, 4)->shares, (BatchSplit{2, 2, 0}));  // the slowest is left out first
  EXPECT_EQ(partition->plan(0, 1)->shares, (BatchSplit{1, 0, 0}));
  for (std::uint32_t window = 1; window <= 300; ++window) {
    const BatchSplit shares = partition->plan(0, window)->shares;
    ASSERT_EQ(std::accumulate(shares.begin(), shares.end(), 0U), window);
    for (const std::uint32_t share : shares) {
      ASSERT_TRUE(share == 0 || share >= std::min(window, 2U));
    }
  }
}

// Proportions say how the shares compare, whatever they are measured in.
TEST(BatchSplitter, ProportionsMayBeOfAnySize) {
  const auto shares = [](std::vector<double> proportions) {
    BatchSplitOptions options = options_for(proportions.size(), 300);
    options.policy = SplitPolicy::kFixed;
    options.proportions = std::move(proportions);
    const auto partition = BatchSplitter::create(options);
    EXPECT_TRUE(partition) << partition.error().message;
    return partition ? partition->shares() : BatchSplit();
  };
  EXPECT_EQ(shares({19.5e12, 9.75e12}), (BatchSplit{200, 100}));  // such as operations a second
  EXPECT_EQ(shares({1e308, 5e307}), (BatchSplit{200, 100}));
  EXPECT_EQ(shares({1e-310, 1e-310}), (BatchSplit{150, 150}));
  EXPECT_EQ(shares({1e-310, 0}), (BatchSplit{299, 1}));  // each has a sample at least
  EXPECT_EQ(shares({3, 2, 1}), (BatchSplit{150, 100, 50}));
  EXPECT_EQ(shares({3e-20, 2e-20, 1e-20}), (BatchSplit{150, 100, 50}));
}

// Whichever worker pulls a shard, its size is within that worker's limits; where no number of shards does that, it is
// refused.
TEST(BatchSplitter, ShardsAreWithinTheLimitsOfAllWorkers) {
  for (std::uint32_t batch = 1; batch <= 40; ++batch) {
    for (std::uint32_t least = 1; least <= std::min(batch, 6U); ++least) {
      for (std::uint32_t most = least; most <= 12; ++most) {
        SCOPED_TRACE(fmt::format("{} samples in shards of {} to {}", batch, least, most));
        BatchSplitOptions options = options_for(2, batch);
        options.policy = SplitPolicy::kPull;
        options.limits = {{least, most}, {0, batch}};
        bool is_possible = false;
        for (std::uint32_t shards = 1; shards <= batch; ++shards) {
          is_possible = is_possible || (batch / shards >= least && (batch + shards - 1) / shards <= most);
        }
        const auto partition = BatchSplitter::create(options);
        ASSERT_EQ(partition.has_value(), is_possible);
        if (!is_possible) {
          EXPECT_EQ(partition.error().code, ErrorCode::kInvalidInput);
          EXPECT_THAT(partition.error().message, HasSubstr("batch_split: work-queue"));
          continue;
        }
        const PullPlan pull({0, batch}, partition->plan(0, batch)->shards);
        for (std::uint32_t shard = 0; shard < pull.shards(); ++shard) {
          ASSERT_GE(pull.shard(shard).size(), least);
          ASSERT_LE(pull.shard(shard).size(), most);
        }
      }
    }
  }
}

TEST(BatchSplitter, ShardsOfShortWindowsKeepTheMinimumToo) {
  BatchSplitOptions options = options_for(2, 64);
  options.policy = SplitPolicy::kPull;
  options.limits = {{2, 4}, {2, 64}};
  const auto partition = BatchSplitter::create(options);
  ASSERT_TRUE(partition) << partition.error().message;
  EXPECT_EQ(partition->plan(0, 1)->shards, 1U);  // of one sample, as there are no more
  for (std::uint32_t window = 2; window <= 64; ++window) {
    const PullPlan pull({0, window}, partition->plan(0, window)->shards);
    for (std::uint32_t shard = 0; shard < pull.shards(); ++shard) {
      ASSERT_GE(pull.shard(shard).size(), 2U) << window;
      ASSERT_LE(pull.shard(shard).size(), 4U) << window;
    }
  }
}

// Memory is short for good, a minimum only in that window.
TEST(BatchSplitter, ShardsOfShortWindowsKeepTheMaximumWhereNoSizeHasBoth) {
  BatchSplitOptions options = options_for(4, 20);
  options.policy = SplitPolicy::kPull;
  options.limits.assign(4, {4, 5});
  const auto partition = BatchSplitter::create(options);
  ASSERT_TRUE(partition) << partition.error().message;
  for (std::uint32_t window = 1; window <= 20; ++window) {
    const PullPlan pull({0, window}, partition->plan(0, window)->shards);
    for (std::uint32_t shard = 0; shard < pull.shards(); ++shard) ASSERT_LE(pull.shard(shard).size(), 5U) << window;
  }
}

TEST(BatchSplitter, EqualSplitsEvenly) {
  BatchSplitOptions options = options_for(3, 256);
  options.policy = SplitPolicy::kEqual;
  auto partition = BatchSplitter::create(options);
  for (std::uint64_t step = 0; step < 50; ++step) {
    run_step(*partition, step, [](std::size_t i, std::uint32_t b) { return 0.001 * b * (1 + static_cast<double>(i)); });
  }
  const BatchSplit shares = partition->plan(50, 256)->shares;
  EXPECT_EQ(*std::max_element(shares.begin(), shares.end()), 86U);
  EXPECT_EQ(*std::min_element(shares.begin(), shares.end()), 85U);
}

TEST(BatchSplitter, ReplayRepeatsWhatWasRecorded) {
  const auto recorded = read_splits(
      "{\"step\":0,\"loss\":1.5,\"batch_split\":[100,156]}\n\n{\"event\":\"evaluation\"}\n{\"step\":1,\"batch_split\":["
      "90,166]}"
      "\n",
      "metrics.jsonl");
  ASSERT_TRUE(recorded);
  BatchSplitOptions options = options_for(2, 256);
  options.policy = SplitPolicy::kReplay;
  options.recorded = *recorded;
  const auto partition = BatchSplitter::create(options);
  ASSERT_TRUE(partition);
  EXPECT_EQ(partition->plan(1, 256)->shares, (BatchSplit{90, 166}));
  EXPECT_THAT(partition->plan(2, 256).error().message, HasSubstr("step 2"));
  EXPECT_THAT(partition->plan(1, 200).error().message, HasSubstr("256"));
  options.limits.resize(3);
  EXPECT_THAT(BatchSplitter::create(options).error().message, HasSubstr("2 workers"));
  EXPECT_THAT(read_splits("{\"step\":0}\n", "m.jsonl").error().message, HasSubstr("m.jsonl"));
  EXPECT_THAT(read_splits("{\"step\":0,\"batch_split\":[1]}\n{nonsense\n", "m.jsonl").error().message,
              HasSubstr("m.jsonl:2"));
}

TEST(BatchSplitter, RefusesWhatNoSplitMeets) {
  BatchSplitOptions options = options_for(4, 3);
  EXPECT_THAT(BatchSplitter::create(options).error().message, HasSubstr("at least 4"));
  options = options_for(2, 100);
  options.limits = {{1, 40}, {1, 40}};
  EXPECT_THAT(BatchSplitter::create(options).error().message, HasSubstr("at most 80"));
  options = options_for(2, 100);
  options.policy = SplitPolicy::kFixed;
  options.proportions = {1};
  EXPECT_FALSE(BatchSplitter::create(options));
  options.proportions = {1, -1};
  EXPECT_THAT(BatchSplitter::create(options).error().message, HasSubstr("-1"));
  EXPECT_FALSE(parse_split_policy("even"));
  EXPECT_EQ(parse_split_policy("work-queue").value(), SplitPolicy::kPull);
}

}  // namespace
}  // namespace motley::data
