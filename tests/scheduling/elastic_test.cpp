// Jobs whose number of workers changes: the simulator against times worked out by hand, and policies that decide by
// slots against the best of all schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/slot.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"
#include "tests/scheduling/elastic_job.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

// Does what it is told, at the times that it is told.
class Script final : public Policy {
 public:
  explicit Script(std::vector<std::pair<double, std::vector<Change>>> script) : script_(std::move(script)) {}
  std::string name() const override { return "script"; }
  Result<Decision> decide(const State& state) override {
    Decision decision;
    for (const auto& [time, changes] : script_) {
      if (time == state.now) decision.changes = changes;
      if (time > state.now) decision.wake = std::min(decision.wake, time);
    }
    return decision;
  }

 private:
  std::vector<std::pair<double, std::vector<Change>>> script_;
};

Outcome replay(const std::vector<Job>& jobs, const ClusterTopology& topology, Policy& policy,
               const SimulationOptions& options = {}) {
  const auto outcome = simulate(jobs, topology, policy, options);
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *outcome : Outcome();
}

TEST(Elastic, GrowsAndShrinksAndLosesItsRestarts) {
  Job job = elastic_job("a", 0, 100, 2, 4);
  job.elastic->restart_cost_seconds = 5;
  // 20 s at speed 1; from then on speed 2, but for 5 s: 30 s do 50 more; then 5 s of nothing and 30 s at 1.
  Script script({{0, {{0, {{0, 2}}}}}, {20, {{0, {{0, 4}}}}}, {50, {{0, {{0, 2}}}}}});
  const Outcome outcome = replay({job}, pool(4), script);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 50 + 5 + 30);
  EXPECT_EQ(outcome.jobs[0].restarts, 2);
  EXPECT_DOUBLE_EQ(outcome.device_seconds, 20 * 2 + 30 * 4 + 35 * 2);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].done_seconds, 100);
}

TEST(Elastic, RingsOnOneLinkSlowEachOtherDown) {
  ClusterTopology topology = uniform(3, 4);
  topology.network.inter_node_bandwidth = 10;
  std::vector<Job> jobs;
  for (const char* name : {"a", "b"}) {
    Job job = elastic_job(name, 0, 100, 4, 4);
    job.elastic->compute_seconds = 1;
    job.elastic->gradient_bytes = 4;  // 0.6 s of an iteration on two nodes, alone; 1.2 s where two rings meet
    jobs.push_back(job);
  }
  // a on nodes 0 and 1, b on 1 and 2: 2.2 s an iteration. At 66 s, b has done 30 s and moves to a place of its own.
  Script script({{0, {{0, {{0, 2}, {1, 2}}}, {1, {{1, 2}, {2, 2}}}}}, {66, {{1, {{2, 4}}}}}});
  const Outcome outcome = replay(jobs, topology, script);
  EXPECT_DOUBLE_EQ(outcome.jobs[1].finished, 66 + 70);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 66 + 70 * 1.6);
}

TEST(Elastic, TheHorizonEndsAll) {
  Job job = elastic_job("a", 0, 100, 1, 1);
  job.iterations = 400;
  Script script({{0, {{0, {{0, 1}}}}}});
  const Outcome outcome = replay({job, elastic_job("b", 30, 10, 1, 1)}, pool(1), script, {.horizon = 64});
  EXPECT_EQ(outcome.end, 64);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].done_seconds, 64);
  EXPECT_TRUE(std::isinf(outcome.jobs[0].finished));
  EXPECT_TRUE(std::isinf(outcome.jobs[1].started));
  EXPECT_DOUBLE_EQ(outcome.utility, 16) << "the root of 256 iterations";
}

TEST(Elastic, ChecksNumbersOfWorkersAndUplinks) {
  Job job = elastic_job("a", 0, 100, 2, 3);
  job.elastic->min_workers = 2;
  const auto message = [&](const Job& one, const ClusterTopology& topology, Placement placement) {
    Script script({{0, {{0, std::move(placement)}}}});
    const auto outcome = simulate({one}, topology, script);
    return outcome ? "accepted" : outcome.error().message;
  };
  EXPECT_EQ(message(job, pool(4), {{0, 3}}), "accepted");
  EXPECT_THAT(message(job, pool(4), {{0, 4}}), HasSubstr("gives 'a' 4 workers that it may not have"));
  EXPECT_THAT(message(job, pool(4), {{0, 1}}), HasSubstr("gives 'a' 1 workers that it may not have"));
  ClusterTopology thin = uniform(2, 2);
  thin.nodes[1].uplink = 3;
  job.elastic->reserve = 3;
  EXPECT_EQ(message(job, thin, {{0, 1}, {1, 1}}), "accepted");
  job.elastic->reserve = 4;
  EXPECT_THAT(message(job, thin, {{0, 1}, {1, 1}}), HasSubstr("gives 'a' 2 workers that it may not have"));
  EXPECT_EQ(message(job, thin, {{0, 2}}), "accepted");
}

// The most utility of any schedule of whole slots in one place.
double best_utility(const std::vector<Job>& jobs, int devices, int slots) {
  std::function<double(int, std::vector<int>)> from = [&](int slot, const std::vector<int>& had) -> double {
    if (slot == slots) {
      double utility = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i)
        utility += jobs[i].utility_after(std::min<double>(had[i], jobs[i].duration));
      return utility;
    }
    double best = 0;
    std::function<void(std::size_t, int, std::vector<int>)> give = [&](std::size_t i, int left, std::vector<int> now) {
      if (i == jobs.size()) {
        best = std::max(best, from(slot + 1, now));
        return;
      }
      const int most = jobs[i].arrival <= slot ? std::min(left, jobs[i].max_workers()) : 0;
      for (int workers = 0; workers <= most; ++workers) {
        std::vector<int> next = now;
        next[i] += workers;
        give(i + 1, left - workers, next);
      }
    };
    give(0, devices, had);
    return best;
  };
  return from(0, std::vector<int>(jobs.size()));
}

// GADGET, theorem 6: with slots solved exactly, half of the best at least; here, where one place has all devices and
// utilities are concave, they are.
TEST(GadgetExact, HasAtLeastHalfOfTheBestUtility) {
  Random random(11);
  constexpr int kSlots = 4;
  double sum = 0;
  constexpr int kTrials = 60;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<Job> jobs;
    for (int i = 0; i < 3; ++i) {
      Job job = elastic_job(fmt::format("job{}", i), i == 0 ? 0 : static_cast<double>(random.below(3)), 0, 1,
                            1 + static_cast<int>(random.below(3)));
      job.duration = static_cast<double>(1 + random.below(6));
      job.utility.shape = trial % 2 == 0 ? Utility::Shape::kSquareRoot : Utility::Shape::kLogarithm;
      job.utility.weight = 1 + 5 * random.uniform();
      jobs.push_back(job);
    }
    std::ranges::stable_sort(jobs, {}, &Job::arrival);
    const int devices = 1 + static_cast<int>(random.below(3));
    const auto policy = make_policy("gadget-exact", {.slot_seconds = 1});
    ASSERT_TRUE(policy);
    const double utility = replay(jobs, pool(devices), **policy, {.horizon = kSlots}).utility;
    const double best = best_utility(jobs, devices, kSlots);
    EXPECT_GE(utility, best / 2) << "trial " << trial;
    sum += utility / best;
  }
  EXPECT_GE(sum / kTrials, 0.97);
}

TEST(GadgetExact, AJobAloneHasAllThatItCanUse) {
  Job job = elastic_job("a", 0, 100, 2, 4);
  for (const Objective objective : {Objective::kUtility, Objective::kCompletion, Objective::kMakespan}) {
    const auto policy = make_policy("gadget-exact", {.objective = objective});
    ASSERT_TRUE(policy);
    EXPECT_DOUBLE_EQ(replay({job}, pool(4), **policy).jobs[0].finished, 50)
        << "though one worker is enough for the slot";
  }
}

// Two jobs for one device, each of which loses almost a slot when it starts again.
TEST(GadgetExact, DoesNotTakeTurnsWhereThatCostsMoreThanItGives) {
  for (const double restart : {1800.0, 3599.0, 3600.0, 10000.0}) {
    std::vector<Job> jobs = {elastic_job("a", 0, 100000, 1, 1), elastic_job("b", 0, 100000, 1, 1)};
    for (Job& job : jobs) job.elastic->restart_cost_seconds = restart;
    const auto policy = make_policy("gadget-exact");
    ASSERT_TRUE(policy);
    const Outcome outcome = replay(jobs, pool(1), **policy);
    EXPECT_LE(outcome.end, 200000 + 12 * restart) << "restarts of " << restart << " s";
  }
}

// Jobs that are twice as fast with twice the workers, up to all of them: nothing is better than one after another, the
// one with least work first, and that newcomers overtake.
TEST(GadgetExact, AtEventsIsTheBestThatThereIsWhereNothingIsWasted) {
  Random random(5);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<Job> jobs;
    double now = 0;
    for (int i = 0; i < 12; ++i) {
      jobs.push_back(elastic_job(fmt::format("job{}", i), now, static_cast<double>(1 + random.below(100)), 1, 4));
      now += static_cast<double>(random.below(20));
    }
    std::vector<Job> one = jobs;
    for (Job& job : one) job = {job.name, job.arrival, job.duration / 4, 1};
    const auto srtf = make_policy("srtf");
    const double best = compute_completion(one, replay(one, pool(1), **srtf)).mean;
    for (const char* name : {"gadget-exact", "elastic-srsf"}) {
      const auto policy =
          make_policy(name, {.slot_seconds = 1000, .at_events = true, .objective = Objective::kCompletion});
      ASSERT_TRUE(policy);
      EXPECT_NEAR(compute_completion(jobs, replay(jobs, pool(4), **policy)).mean, best, 1e-6 * best)
          << name << ", trial " << trial;
    }
  }
}

// The shorter job's second worker adds a fifth: worth less than the longer one's first, as two jobs wait for the one
// and one for the other.
TEST(GadgetExact, WithTheCompletionObjectiveWastesNoDevicesOnTheShort) {
  std::vector<Job> jobs = {elastic_job("short", 0, 100, 1, 2), elastic_job("long", 0, 150, 1, 2)};
  for (Job& job : jobs) job.elastic->speedup = {{2, 1.2}};
  const auto policy = make_policy("gadget-exact", {.at_events = true, .objective = Objective::kCompletion});
  ASSERT_TRUE(policy);
  const Outcome outcome = replay(jobs, pool(2), **policy);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 100);
  EXPECT_DOUBLE_EQ(outcome.jobs[1].finished, 100 + 50 / 1.2);
}

// What a worker is worth to each job at `now`, with the completion objective; none has run.
std::vector<double> price_workers(const std::vector<Job>& jobs, double now) {
  const ClusterTopology topology = pool(2);
  const Capacity capacity(topology);
  const std::vector<Progress> progress(jobs.size());
  std::vector<int> numbers(jobs.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  const State state{.now = now,
                    .jobs = jobs,
                    .progress = progress,
                    .topology = &topology,
                    .capacity = &capacity,
                    .arrived = numbers,
                    .finished = {},
                    .running = {},
                    .active = numbers};
  std::vector<double> prices;
  for (const SlotJob& job : slot_problem(state, numbers, topology, now + 600, Objective::kCompletion).jobs) {
    prices.push_back(job.value[0][1]);
  }
  return prices;
}

TEST(SlotProblem, TheWorkOfWhoHasWaitedLongestCostsALittleMore) {
  std::vector<Job> jobs = {elastic_job("short", 4000, 100, 1, 1), elastic_job("longer", 4000, 105, 1, 1)};
  for (int i = 0; i < 20; ++i) jobs.push_back(elastic_job(fmt::format("long{}", i), 4000, 1000, 1, 1));
  const std::vector<double> before = price_workers(jobs, 4000);
  EXPECT_DOUBLE_EQ(before[1], before[0] * 21 / 22);  // so many have as much work or more
  jobs[1].arrival = 0;
  const std::vector<double> after = price_workers(jobs, 4000);
  EXPECT_DOUBLE_EQ(after[1], before[1] / std::pow(0.97, 4));
  EXPECT_DOUBLE_EQ(after[0], before[0]);
}

TEST(SlotProblem, OfEqualJobsWorkIsDearestOfWhoCameFirst) {
  const std::vector<double> prices =
      price_workers({elastic_job("first", 0, 100, 1, 1), elastic_job("second", 0, 100, 1, 1)}, 0);
  EXPECT_DOUBLE_EQ(prices[0], 2 * prices[1]);
}

// It would be done before it had restarted.
TEST(SlotProblem, WhoWouldNotGrowIsNotChargedForGrowing) {
  Job job = elastic_job("short", 0, 15, 1, 2);
  job.elastic->restart_cost_seconds = 25;
  EXPECT_DOUBLE_EQ(price_workers({job}, 0)[0], 600);
  job.duration = 1000;
  EXPECT_LT(price_workers({job}, 0)[0], 600);
}

TEST(Simulator, NamesAJobWhereAllOnlyRestart) {
  std::vector<Job> jobs = {elastic_job("a", 0, 10, 1, 1), elastic_job("b", 0, 10, 1, 1)};
  for (Job& job : jobs) job.elastic->restart_cost_seconds = 5;
  struct Alternate final : Policy {
    std::string name() const override { return "alternate"; }
    Result<Decision> decide(const State& state) override {
      const int next = state.placement(0).empty() ? 0 : 1;
      return Decision{{{1 - next, {}}, {next, {{0, 1}}}}, state.now + 1};
    }
  } alternate;
  const auto outcome = simulate(jobs, pool(1), alternate);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(outcome.error().message, HasSubstr("'alternate' changes the workers of jobs such as 'b'"));
  EXPECT_THAT(outcome.error().message, HasSubstr("a restart takes 5 s"));
}

TEST(GadgetExact, WithTheCompletionObjectiveServesTheShortFirst) {
  const auto policy = make_policy("gadget-exact", {.slot_seconds = 10, .objective = Objective::kCompletion});
  ASSERT_TRUE(policy);
  const Outcome outcome =
      replay({elastic_job("long", 0, 100, 1, 2), elastic_job("short", 0, 20, 1, 2)}, pool(2), **policy);
  EXPECT_DOUBLE_EQ(outcome.jobs[1].finished, 10);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 60);
}

TEST(Drf, GivesEverybodyTheSame) {
  const auto policy = make_policy("drf", {.slot_seconds = 10});
  ASSERT_TRUE(policy);
  // Three and three of six; once the first is done, the other can use four.
  const Outcome outcome = replay({elastic_job("a", 0, 30, 1, 6), elastic_job("b", 0, 90, 1, 4)}, pool(6), **policy);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 10);
  EXPECT_DOUBLE_EQ(outcome.jobs[1].finished, 25);
}

// The second job could be done in time only if the first one were late.
TEST(ElasticFlow, AdmitsNobodyForWhomAnotherWouldBeLate) {
  std::vector<Job> jobs = {{"first", 0, 400, 4}, {"second", 100, 100, 4}};
  jobs[0].deadline = 400;
  jobs[1].deadline = 200;
  const auto policy = make_policy("elasticflow", {.slot_seconds = 100});
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_DOUBLE_EQ(replay(jobs, pool(4), **policy).jobs[0].finished, 400);
}

// With three jobs of 10 and one of 100 device-seconds, a new job's index is 3 / (3 * 10 + 10), and one's that has had
// 10 is 1 / 90: it makes way for a new one, which does not make way for another.
TEST(Gittins, AJobThatHasHadMuchMakesWay) {
  const auto policy = make_policy("gittins");
  ASSERT_TRUE(policy);
  const Outcome outcome =
      replay({{"long", 0, 100, 1}, {"b", 20, 10, 1}, {"c", 25, 10, 1}, {"d", 90, 5, 2}}, pool(2), **policy);
  EXPECT_EQ(outcome.jobs[0].restarts, 2) << "from 25 s, when c comes, to 30 s, and while d needs both devices";
  EXPECT_DOUBLE_EQ(outcome.jobs[3].finished, 95);
  EXPECT_DOUBLE_EQ(outcome.jobs[0].finished, 110);
  const auto alone = make_policy("gittins");
  const Outcome one =
      replay({{"long", 0, 100, 1}, {"b", 20, 10, 1}, {"c", 25, 10, 1}, {"d", 200, 10, 1}}, pool(1), **alone);
  EXPECT_DOUBLE_EQ(one.jobs[1].finished, 30);
  EXPECT_DOUBLE_EQ(one.jobs[2].finished, 40);
  EXPECT_DOUBLE_EQ(one.jobs[0].finished, 120);
}

// One job in 200 is longer than all others together: once it has had as much as they take, its index is 1 / 9,700 and
// less, and a new job's about 1 / 250, so that it makes way for each of them.
TEST(Gittins, TheTailMakesWayToo) {
  std::vector<Job> jobs = {{"long", 0, 10000, 1}};
  for (int i = 0; i < 199; ++i) jobs.push_back({fmt::format("job{}", i), 1000.0 + i * 1000, 100.0 + i, 1});
  const auto policy = make_policy("gittins");
  ASSERT_TRUE(policy);
  const Outcome outcome = replay(jobs, pool(1), **policy);
  for (std::size_t i = 1; i < jobs.size(); ++i) {
    EXPECT_DOUBLE_EQ(outcome.jobs[i].finished, jobs[i].arrival + jobs[i].duration) << jobs[i].name;
  }
}

// a and b have waited as long when the second slot begins, and b is farther behind: it is shorter.
TEST(Themis, ServesThoseWhoAreFarthestBehind) {
  const auto policy = make_policy("themis", {.slot_seconds = 10});
  ASSERT_TRUE(policy);
  const Outcome outcome = replay({{"a", 0, 100, 1}, {"b", 0, 20, 1}}, pool(1), **policy);
  EXPECT_EQ(outcome.jobs[0].started, 0) << "the same from the begin on, and it comes first";
  EXPECT_EQ(outcome.jobs[1].started, 10);
  EXPECT_EQ(outcome.jobs[1].finished, 30) << "(20 + 10) / 20 is more than (20 + 90) / 100";
  EXPECT_EQ(outcome.jobs[0].finished, 120);
}

// Published: SJF-BCO about 530 slots, list scheduling 595, random 1,130. No schedule is shorter than the longest job,
// nor than all work on all devices.
TEST(SjfBco, HasTheShorterMakespans) {
  std::map<std::string, double> sums;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Setting setting = sjf_bco_setting(20, seed);
    double least = 0, work = 0;
    for (const Job& job : setting.jobs) {
      least = std::max(least, job.duration);
      work += job.device_seconds();
    }
    least = std::max(least, work / setting.topology.devices());
    for (const char* name : {"sjf-bco", "list-scheduling", "random-devices"}) {
      const auto policy = make_policy(name);
      ASSERT_TRUE(policy);
      const Outcome outcome = replay(setting.jobs, setting.topology, **policy);
      EXPECT_GE(outcome.end, least);
      for (const JobOutcome& job : outcome.jobs) EXPECT_EQ(job.restarts, 0);
      sums[name] += outcome.end;
    }
  }
  EXPECT_LT(sums["sjf-bco"], sums["list-scheduling"]);
  EXPECT_LT(sums["list-scheduling"], sums["random-devices"]);
}

// In GADGET's settings and in tighter ones: the simulator takes every placement, and no policy gets more than there is.
TEST(Settings, EveryPolicyKeepsToWhatThereIs) {
  for (const auto& [nodes, seeds] : {std::pair(2, 2U), {4, 2U}, {50, 1U}}) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const Setting setting = gadget_setting(nodes, 60, seed);
      for (const std::string& name : policy_names()) {
        if (!make_policy(name)) continue;  // needs HiGHS, and this build has none
        SCOPED_TRACE(fmt::format("{} on {} nodes, seed {}", name, nodes, seed));
        const auto policy =
            make_policy(name, {.placement = PlacementStrategy::kCompact, .slot_seconds = setting.slot_seconds});
        ASSERT_TRUE(policy);
        const Outcome outcome = replay(setting.jobs, setting.topology, **policy, {.horizon = setting.horizon});
        EXPECT_LE(outcome.utility, utility_bound(setting.jobs, setting.topology, setting.horizon) * (1 + 1e-9));
        EXPECT_LE(outcome.utilisation, 1 + 1e-9);
        EXPECT_GT(outcome.utility, 0);
      }
    }
  }
}

}  // namespace
}  // namespace motley::scheduling
