// Servers that fail under jobs, and devices that cost something: the simulator against what must add up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <span>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/simulator/simulator.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

Outcome replay(const std::string& name, const std::vector<Job>& jobs, const ClusterTopology& topology,
               const SimulationOptions& options, const PolicyOptions& policy_options = {}) {
  const auto policy = make_policy(name, policy_options);
  EXPECT_TRUE(policy) << policy.error().message;
  const auto outcome = simulate(jobs, topology, **policy, options);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *outcome : Outcome();
}

Failures failures(double mean, std::uint64_t seed) {
  return {.mtbf_seconds = mean, .mttr_seconds = 50, .checkpoint_interval_seconds = 30, .seed = seed};
}

// One job on the only node: it takes as long as its work, what it lost, and the repairs.
TEST(Failures, CostWhatWasNotSavedAndTheRepair) {
  int failed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Job job{"a", 0, 1000, 2};
    job.elastic.emplace();
    job.elastic->min_workers = job.elastic->max_workers = 2;
    job.elastic->restart_cost_seconds = 7;
    const Outcome outcome = replay("fifo", {job}, uniform(1, 2), {.failures = failures(400, seed)});
    const JobOutcome& one = outcome.jobs[0];
    EXPECT_EQ(one.restarts, one.failures);
    EXPECT_LE(outcome.lost_device_seconds, 2 * 30.0 * one.failures);
    EXPECT_LE(one.finished, 1000 + outcome.lost_device_seconds / 2 + one.failures * (50.0 + 7) + 1e-6);
    // It fails while it restarts, at times, and is then not seven seconds late each time.
    EXPECT_GE(one.finished, 1000 + outcome.lost_device_seconds / 2 + one.failures * 50.0 - 1e-6);
    EXPECT_DOUBLE_EQ(one.done_seconds, 1000);
    failed += one.failures;
  }
  EXPECT_NEAR(failed, 20 * 1000 / 400.0, 20) << "about one in 400 s";
}

TEST(Failures, TakeNothingWhereNobodyRuns) {
  const std::vector<Job> jobs = {{"a", 0, 100, 4}};
  const Outcome without = replay("fifo", jobs, uniform(1, 4), {});
  EXPECT_EQ(without.jobs[0].failures, 0);
  EXPECT_EQ(without.lost_device_seconds, 0);
  const Outcome rare = replay("fifo", jobs, uniform(1, 4), {.failures = failures(1e9, 1)});
  EXPECT_EQ(rare.jobs[0].finished, without.jobs[0].finished);
}

// Whatever the policy: all are done, and nobody was given a node that had failed (simulate checks).
TEST(Failures, EveryPolicyGoesOn) {
  Random random(4);
  for (int trial = 0; trial < 3; ++trial) {
    std::vector<Job> jobs;
    double arrival = 0;
    for (int i = 0; i < 25; ++i) {
      Job job{fmt::format("job{}", i), arrival, static_cast<double>(1 + random.below(2000)),
              1 + static_cast<int>(random.below(6))};
      arrival += static_cast<double>(random.below(300));
      if (random.below(2) == 0) {
        job.elastic.emplace();
        job.elastic->max_workers = 2 * job.workers;
        job.elastic->restart_cost_seconds = 5;
      }
      jobs.push_back(std::move(job));
    }
    for (const std::string& name : online_policy_names()) {
      SCOPED_TRACE(fmt::format("trial {} of {}", trial, name));
      const Outcome outcome = replay(name, jobs, uniform(4, 4, 2), {.failures = failures(900, 7)},
                                     {.placement = PlacementStrategy::kCompact, .slot_seconds = 100});
      int failed = 0;
      for (const JobOutcome& job : outcome.jobs) {
        EXPECT_TRUE(std::isfinite(job.finished));
        failed += job.failures;
      }
      EXPECT_GT(failed, 0);
      const Outcome again = replay(name, jobs, uniform(4, 4, 2), {.failures = failures(900, 7)},
                                   {.placement = PlacementStrategy::kCompact, .slot_seconds = 100});
      EXPECT_EQ(outcome.end, again.end);
    }
  }
}

TEST(Failures, OfAllNodesAtOnceAreWaitedFor) {
  std::vector<Job> jobs;
  for (int i = 0; i < 6; ++i) {
    jobs.push_back({fmt::format("job{}", i), 100.0 * i, 300, 1 + i % 2});
    if (i % 3 == 0) {
      jobs.back().elastic.emplace();
      jobs.back().elastic->max_workers = 4;
    }
  }
  for (const std::string& name : online_policy_names()) {
    SCOPED_TRACE(name);
    const Outcome outcome = replay(name, jobs, uniform(1, 4), {.failures = failures(200, 3)}, {.slot_seconds = 20});
    int failed = 0;
    for (const JobOutcome& job : outcome.jobs) {
      EXPECT_TRUE(std::isfinite(job.finished));
      failed += job.failures;
    }
    EXPECT_GT(failed, 0);
  }
}

TEST(Failures, ThatNoJobCanBearAreSaidSo) {
  const auto policy = make_policy("fifo");
  ASSERT_TRUE(policy);
  const auto outcome =
      simulate({{"a", 0, 1000, 1}}, pool(1), **policy,
               {.failures = {.mtbf_seconds = 1, .mttr_seconds = 1, .checkpoint_interval_seconds = 500}});
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().message, HasSubstr("job 'a' has failed 10000 times; accepted: nodes that fail less"));
}

// What a policy decides, slot after slot, while a node is away and no job ends.
class AwayTest : public ::testing::TestWithParam<const char*> {
 protected:
  AwayTest() {
    topology_.nodes = {{.name = "v", .devices = 4}, {.name = "k", .devices = 0, .type = 1}};
    topology_.types = {"v100", "k80"};
  }
  void add(std::vector<double> speeds, int workers, double duration) {
    Job job{fmt::format("job{}", jobs_.size()), 0, duration, workers};
    job.type_speeds = std::move(speeds);
    jobs_.push_back(std::move(job));
  }
  // How many slots each job has had workers.
  std::vector<int> decide(Policy& policy, int slots) {
    std::vector<Progress> progress(jobs_.size());
    std::vector<int> active(jobs_.size()), had(jobs_.size());
    std::iota(active.begin(), active.end(), 0);
    for (int slot = 0; slot < slots; ++slot) {
      Capacity capacity(topology_);
      std::vector<int> running;
      for (const int job : active) {
        progress[index(job)].settle(slot * kSlotSeconds);
        if (!progress[index(job)].runs()) continue;
        capacity.take(progress[index(job)].placement, jobs_[index(job)].demand());
        running.push_back(job);
      }
      const auto decision = policy.decide({slot * kSlotSeconds,
                                           jobs_,
                                           progress,
                                           &topology_,
                                           &capacity,
                                           slot == 0 ? std::span<const int>(active) : std::span<const int>(),
                                           {},
                                           running,
                                           active});
      EXPECT_TRUE(decision) << decision.error().message;
      for (const Change& change : decision->changes) progress[index(change.job)].placement = change.placement;
      for (const int job : active) had[index(job)] += progress[index(job)].runs() ? 1 : 0;
    }
    return had;
  }

  static constexpr double kSlotSeconds = 100;
  ClusterTopology topology_;
  std::vector<Job> jobs_;
};

TEST_P(AwayTest, AJobThatCannotRunKeepsNoOtherFromRunning) {
  add({0, 1}, 4, 10);  // the first in any order, and only where nobody is
  add({1, 1}, 4, 1000);
  const auto policy = make_policy(GetParam(), {.slot_seconds = kSlotSeconds});
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(decide(**policy, 3), (std::vector<int>{0, 3}));
}
INSTANTIATE_TEST_SUITE_P(Policies, AwayTest,
                         ::testing::Values("elastic-srsf", "afs", "elasticflow", "drf", "optimus", "gavel", "sia",
                                           "las", "gadget-exact"));

// Its share is nothing, which is no reason for others to have less than their equal parts.
TEST_F(AwayTest, GavelIsFairToTheOthers) {
  add({0, 1}, 1, 1e6);
  for (int i = 0; i < 8; ++i) add({1, 1}, 1, 1e6);
  const auto policy = make_policy("gavel", {.slot_seconds = kSlotSeconds, .objective = Objective::kFairness});
  const std::vector<int> had = decide(**policy, 40);
  EXPECT_EQ(had.front(), 0);
  EXPECT_THAT(std::vector<int>(had.begin() + 1, had.end()),
              ::testing::Each(::testing::AllOf(::testing::Ge(15), ::testing::Le(25))));
}

TEST(Failures, ArePoliciesOwnToRefuse) {
  const auto policy = make_policy("sjf-bco");
  ASSERT_TRUE(policy);
  const auto outcome = simulate({{"a", 0, 1000, 1}}, pool(1), **policy, {.failures = failures(10, 1)});
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().message, HasSubstr("'sjf-bco' knows no failures"));
}

// Nobody loses a place with a node that is idle, as almost always here; there are fewer devices.
TEST(Failures, OfIdleNodesAreRefusedLikewise) {
  const std::vector<Job> jobs = {{"a", 0, 1, 1}, {"b", 1000, 1, 1}};
  for (const char* name : {"sjf-bco", "list-scheduling"}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(fmt::format("{} with seed {}", name, seed));
      const auto policy = make_policy(name);
      ASSERT_TRUE(policy);
      const auto outcome = simulate(jobs, uniform(2, 1), **policy, {.failures = failures(50, seed)});
      ASSERT_FALSE(outcome);
      EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidInput);
      EXPECT_THAT(outcome.error().message, HasSubstr(fmt::format("'{}' knows no failures", name)));
    }
  }
}

// The root of the seconds trained, less what devices cost: the last second that pays for its device is at
// (3600 / (2 cost))^2.
TEST(Cost, AJobTrainsForAsLongAsItsUtilityPaysForItsDevices) {
  Job job{"a", 0, 10000, 1};
  job.device_hour_cost = 36;
  const Outcome outcome = replay("gadget-exact", {job}, pool(1), {}, {.slot_seconds = 100});
  EXPECT_NEAR(outcome.jobs[0].done_seconds, 2500, 110);
  EXPECT_TRUE(std::isinf(outcome.jobs[0].finished));
  EXPECT_NEAR(outcome.utility, std::sqrt(2500) - 36 * 2500 / 3600.0, 0.1);
  job.device_hour_cost = 0;
  EXPECT_DOUBLE_EQ(replay("gadget-exact", {job}, pool(1), {}, {.slot_seconds = 100}).jobs[0].finished, 10000);
}

// A ring over two nodes would gain less than its devices cost, one within a node more; there are no such nodes.
TEST(Cost, GadgetGivesNothingToAJobThatOnlyLoses) {
  Job job{"a", 0, 1000, 2};
  job.elastic.emplace();
  job.elastic->min_workers = job.elastic->max_workers = 2;
  job.elastic->gradient_bytes = 1e8;
  job.device_hour_cost = 100;
  ClusterTopology topology = uniform(4, 1);
  topology.network.inter_node_bandwidth = 1e6;
  const Outcome outcome = replay("gadget", {job}, topology, {.horizon = 300}, {.slot_seconds = 60});
  EXPECT_EQ(outcome.device_seconds, 0);
}

// Twice the workers do not do twice the work here: a price on devices makes the job take fewer.
TEST(Cost, MakesJobsTakeFewerWorkersThatDoLess) {
  Job job{"a", 0, 4000, 1};
  job.utility = {Utility::Shape::kLinear};
  job.elastic.emplace();
  job.elastic->max_workers = 8;
  job.elastic->gradient_bytes = 1;  // 1 s of computation, and 2 (w - 1) / w of exchange
  ClusterTopology topology = pool(8);
  topology.network.intra_node_bandwidth = 1;
  const auto workers_at = [&](double cost) {
    job.device_hour_cost = cost;
    const auto policy = make_policy("gadget-exact", {.slot_seconds = 100});
    const auto outcome = simulate({job}, topology, **policy, {.keep_runs = true});
    return outcome && !outcome->runs.empty() ? count_workers(outcome->runs.front().placement) : 0;
  };
  EXPECT_EQ(workers_at(0), 8);
  EXPECT_LT(workers_at(1500), 8);
  EXPECT_EQ(workers_at(4000), 0) << "a second of a device does a second of work at best";
}

}  // namespace
}  // namespace motley::scheduling
