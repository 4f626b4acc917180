// Devices of different types: where jobs may be, how fast they are there, and policies that know it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/slot.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

ClusterTopology topology(const std::string& text) {
  const auto parsed = parse_topology(text);
  EXPECT_TRUE(parsed) << parsed.error().message;
  return parsed ? *parsed : ClusterTopology();
}

Job job(const std::string& name, double duration, int workers, std::vector<double> speeds) {
  Job one{name, 0, duration, workers};
  one.type_speeds = std::move(speeds);
  return one;
}

Outcome replay(const std::string& name, const std::vector<Job>& jobs, const ClusterTopology& topology,
               const PolicyOptions& options = {}) {
  const auto policy = make_policy(name, options);
  EXPECT_TRUE(policy) << policy.error().message;
  const auto outcome = simulate(jobs, topology, **policy, {.keep_runs = true});
  EXPECT_TRUE(outcome) << outcome.error().message;
  return outcome ? *outcome : Outcome();
}

TEST(HeterogeneousTopology, AreReadFromText) {
  const ClusterTopology some = topology("2x4:v100,3x8/2:k80,1x4:v100");
  EXPECT_THAT(some.types, ::testing::ElementsAre("v100", "k80"));
  EXPECT_EQ(some.nodes.size(), 6U);
  EXPECT_EQ(some.devices(), 36);
  EXPECT_EQ(some.devices(0), 12);
  EXPECT_EQ(some.devices(1), 24);
  EXPECT_EQ(some.largest_node(0), 4);
  EXPECT_EQ(some.racks, 4) << "one of the first part, two of the second, one of the third";
  EXPECT_EQ(some.nodes[5].type, 0);
  EXPECT_EQ(some.nodes[5].rack, 3);
  EXPECT_EQ(some.nodes[5].name, "node5");
  for (const char* text : {"2x4:v100,3x8", "2x4,3x8", "2x4:", ":v100", "2x4:a:b", "2x4:a,", "600000:a,600000:b"}) {
    EXPECT_FALSE(parse_topology(text)) << text;
  }
}

TEST(Heterogeneous, AJobIsAsFastAsItsDevices) {
  const ClusterTopology two = topology("1x2:new,1x2:old");
  // 100 s of which 40 are exchange and do not depend on devices: with half the pace 160 + 40.
  Job elastic = job("a", 100, 2, {0.5, 0.5});
  elastic.elastic.emplace();
  elastic.elastic->min_workers = elastic.elastic->max_workers = 2;
  elastic.elastic->compute_seconds = 0.6;
  elastic.elastic->gradient_bytes = 1;
  ClusterTopology linked = two;
  linked.network.intra_node_bandwidth = 2.5;
  EXPECT_DOUBLE_EQ(replay("fifo", {elastic}, linked).jobs[0].finished, 160);
  EXPECT_DOUBLE_EQ(replay("fifo", {job("a", 100, 1, {0.25, 0.5})}, two).jobs[0].finished, 200) << "on the faster";
  EXPECT_DOUBLE_EQ(replay("fifo", {job("a", 100, 1, {0, 0.5})}, two).jobs[0].finished, 200);
  EXPECT_DOUBLE_EQ(replay("fifo", {Job{"a", 0, 100, 4}}, two).jobs[0].finished, 100) << "any devices, of both types";
}

TEST(Heterogeneous, WhatCannotRunIsRefused) {
  const ClusterTopology two = topology("1x4:new,1x2:old");
  const auto message = [&](const Job& one, const char* name) {
    const auto policy = make_policy(name);
    EXPECT_TRUE(policy);
    const auto outcome = simulate({one}, two, **policy);
    return outcome ? "accepted" : outcome.error().message;
  };
  EXPECT_EQ(message(job("a", 1, 2, {0, 1}), "fifo"), "accepted");
  EXPECT_THAT(message(job("a", 1, 3, {0, 1}), "fifo"),
              HasSubstr("job 'a' asks for 3 devices and can never run; there are 2 of a type on which it can"));
  EXPECT_THAT(message(job("a", 1, 5, {1, 1}), "fifo"), HasSubstr("there are 4 of a type on which it can"));
  EXPECT_THAT(message(job("a", 1, 1, {1}), "fifo"),
              HasSubstr("speeds for 1 types of devices; accepted: for each of 2"));
  EXPECT_THAT(message(job("a", 1, 1, {1, 1}), "sjf-bco"), HasSubstr("'sjf-bco' knows one type of devices only"));
}

class Once final : public Policy {
 public:
  explicit Once(Placement placement) : placement_(std::move(placement)) {}
  std::string name() const override { return "once"; }
  Result<Decision> decide(const State& state) override {
    Decision decision;
    if (!state.arrived.empty()) decision.changes = {{0, placement_}};
    return decision;
  }

 private:
  Placement placement_;
};

TEST(Heterogeneous, ThePolicyMayNotMixTypesOrUseOneThatIsTooSlow) {
  const ClusterTopology two = topology("1x2:new,1x2:old");
  const auto message = [&](const Job& one, Placement placement) {
    Once once(std::move(placement));
    const auto outcome = simulate({one}, two, once);
    return outcome ? "accepted" : outcome.error().message;
  };
  EXPECT_EQ(message(job("a", 1, 2, {1, 0}), {{0, 2}}), "accepted");
  EXPECT_THAT(message(job("a", 1, 2, {1, 1}), {{0, 1}, {1, 1}}), HasSubstr("that it may not have"));
  EXPECT_THAT(message(job("a", 1, 2, {1, 0}), {{1, 2}}), HasSubstr("that it may not have"));
  EXPECT_EQ(message(Job{"a", 0, 1, 2}, {{0, 1}, {1, 1}}), "accepted");
}

// Of two jobs one is ten times as fast on new devices and the other hardly: who knows it gives the new one to the
// first.
TEST(Heterogeneous, PoliciesThatKnowSpeedsGiveDevicesToThoseWhoMakeMostOfThem) {
  const ClusterTopology two = topology("1x1:new,1x1:old");
  const std::vector<Job> jobs = {job("hardly", 3600, 1, {1, 0.9}), job("much", 3600, 1, {1, 0.1})};
  for (const Objective objective : {Objective::kCompletion, Objective::kFairness, Objective::kUtility}) {
    for (const char* name : {"gavel", "sia", "gadget-exact"}) {
      if (!make_policy(name)) continue;  // needs HiGHS, and this build has none
      const bool is_max_min = std::string_view(name) == "gavel" && objective != Objective::kCompletion;
      SCOPED_TRACE(fmt::format("{} for {}", name, static_cast<int>(objective)));
      const Outcome outcome = replay(name, jobs, two, {.slot_seconds = 60, .objective = objective});
      // Gavel's max-min promises each what an equal part of both types would have given it.
      EXPECT_LE(outcome.jobs[1].finished, is_max_min ? 3600 / 0.55 + 121 : 3600 + 121);
      EXPECT_LE(outcome.jobs[0].finished, is_max_min ? 3600 / 0.95 + 121 : 3600 / 0.9 + 121);
    }
  }
  EXPECT_GT(replay("fifo", jobs, two).jobs[1].finished, 5000) << "first come, fastest served";
}

// Where types make no difference to a job, all is as in one place.
TEST(Heterogeneous, EqualSpeedsAreAsGoodAsAlike) {
  Random random(3);
  for (int trial = 0; trial < 5; ++trial) {
    std::vector<Job> alike, heterogeneous;
    for (int i = 0; i < 12; ++i) {
      Job one{fmt::format("job{}", i), 0, 600.0 * static_cast<double>(1 + random.below(6)), 1};
      alike.push_back(one);
      one.type_speeds = {1, 1};
      heterogeneous.push_back(one);
    }
    for (const char* name : {"fifo", "las", "srtf", "gadget-exact"}) {
      SCOPED_TRACE(name);
      const PolicyOptions options = {.slot_seconds = 60, .objective = Objective::kCompletion};
      const Outcome one = replay(name, alike, pool(4), options);
      const Outcome other = replay(name, heterogeneous, topology("2:a,2:b"), options);
      EXPECT_NEAR(compute_completion(heterogeneous, other).mean, compute_completion(alike, one).mean,
                  0.02 * compute_completion(alike, one).mean);
    }
  }
}

// Whatever the policy: the simulator takes every placement, all jobs are done, nobody faster than on the fastest type.
TEST(Heterogeneous, EveryPolicyKeepsItsLaws) {
  Random random(9);
  for (int trial = 0; trial < 6; ++trial) {
    const ClusterTopology some = topology(trial % 2 == 0 ? "3x4:a,2x8:b,8:c" : "2x8/1:a,4x4/2:b");
    std::vector<Job> jobs;
    double arrival = 0;
    for (int i = 0; i < 30; ++i) {
      Job one{fmt::format("job{}", i), arrival, static_cast<double>(1 + random.below(5000)), 1 << random.below(4)};
      arrival += static_cast<double>(random.below(1000));
      for (std::size_t type = 0; type < some.types.size(); ++type) {
        one.type_speeds.push_back(random.below(5) == 0 ? 0 : 0.1 + random.uniform());
      }
      one.type_speeds.front() = 0.2 + random.uniform();
      if (random.below(3) == 0) one.type_speeds.clear();
      if (random.below(2) == 0) {
        one.elastic.emplace();
        one.elastic->max_workers = 2 * one.workers;
        one.elastic->restart_cost_seconds = 10;
      }
      jobs.push_back(std::move(one));
    }
    for (const std::string& name : online_policy_names()) {
      SCOPED_TRACE(fmt::format("trial {} of {}", trial, name));
      const Outcome outcome =
          replay(name, jobs, some,
                 {.placement = trial % 3 == 0 ? PlacementStrategy::kCompact : PlacementStrategy::kConsolidated,
                  .slot_seconds = 600});
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        const double most = jobs[i].elastic ? 2 * jobs[i].speed_on(kAnyType) : jobs[i].speed_on(kAnyType);
        EXPECT_GE(outcome.jobs[i].finished, outcome.jobs[i].started + jobs[i].duration / most - 1e-6);
        EXPECT_TRUE(std::isfinite(outcome.jobs[i].finished));
      }
    }
  }
}

// Where devices cost more than a job gains where it runs, it may be moved or stopped; never shrunk below its least.
TEST(Heterogeneous, GadgetExactGivesNoJobFewerWorkersThanItsLeastWhereDevicesCost) {
  Random random(4);
  for (int trial = 0; trial < 6; ++trial) {
    SCOPED_TRACE(trial);
    ClusterTopology some = topology("3x4/1:a,4x4/2:b");
    some.network.inter_node_bandwidth = 1e9;
    std::vector<Job> jobs;
    for (int i = 0; i < 25; ++i) {
      Job one{fmt::format("{}", i), 200.0 * i, static_cast<double>(1 + random.below(5000)),
              4 << static_cast<int>(random.below(2))};
      one.elastic = Elastic{.min_workers = one.workers / 2, .max_workers = one.workers};
      one.elastic->compute_seconds = 0.1;
      one.elastic->gradient_bytes = 1e8 * random.uniform();
      one.elastic->restart_cost_seconds = 30;
      one.device_hour_cost = 10 * random.uniform();
      one.type_speeds = {1, 0.2 + random.uniform()};
      jobs.push_back(std::move(one));
    }
    const auto policy = make_policy("gadget-exact", {.placement = PlacementStrategy::kCompact, .slot_seconds = 600});
    ASSERT_TRUE(policy) << policy.error().message;
    const auto outcome = simulate(jobs, some, **policy);
    EXPECT_TRUE(outcome) << outcome.error().message;
  }
}

TEST(GavelSetting, IsDrawnFromTheTable) {
  const auto table = Throughputs::parse(
      R"json({"v100": {"('a', 1)": {"null": 4}, "('b', 1)": {"null": 8}, "('a', 2)": {"null": 8}, "('a', 4)": {"null": 8},
                   "('a', 8)": {"null": 8}},
          "p100": {"('a', 1)": {"null": 2}, "('b', 1)": {"null": 8}, "('a', 2)": {"null": 4}, "('a', 4)": {"null": 4},
                   "('a', 8)": {"null": 4}},
          "k80": {"('a', 1)": {"null": 1}, "('b', 1)": {"null": 0}, "('a', 2)": {"null": 2}, "('a', 4)": {"null": 2},
                  "('a', 8)": {"null": 2}}})json",
      "t.json");
  ASSERT_TRUE(table) << table.error().message;
  const auto setting = setting_named("gavel:2000:2.5", 1, &*table);
  ASSERT_TRUE(setting) << setting.error().message;
  EXPECT_EQ((*setting)->topology.devices(2), 36);
  double small = 0, two = 0;
  for (const Job& one : (*setting)->jobs) {
    small += one.workers == 1 ? 1 : 0;
    two += one.workers == 2 ? 1 : 0;
    EXPECT_THAT(one.type_speeds,
                ::testing::AnyOf(::testing::ElementsAre(1, 0.5, 0.25), ::testing::ElementsAre(1, 1, 0)));
    EXPECT_GE(one.duration, 60 * std::pow(10, 1.5));
    EXPECT_LE(one.duration, 60 * 1e4);
  }
  EXPECT_NEAR(small / 2000, 0.7, 0.04);
  EXPECT_NEAR(two / 2000, 0.1, 0.03);
  EXPECT_NEAR((*setting)->jobs.back().arrival / 3600, 2000 / 2.5, 80);

  const auto refused = [&](const char* name, const Throughputs* with) {
    const auto wrong = setting_named(name, 1, with);
    return wrong ? "accepted" : wrong.error().message;
  };
  EXPECT_THAT(refused("gavel:20:2", nullptr), HasSubstr("with a table of throughputs (--throughputs)"));
  EXPECT_THAT(refused("gavel:20", &*table), HasSubstr("TRACE: 'gavel:20'; accepted: gadget:NODES:JOBS"));
  EXPECT_THAT(refused("gavel:20:0", &*table), HasSubstr("accepted: gadget:NODES:JOBS"));
  EXPECT_THAT(refused("gadget:5.5:20", nullptr), HasSubstr("accepted: gadget:NODES:JOBS"));
  EXPECT_FALSE(*setting_named("trace.csv", 1, nullptr));
}

}  // namespace
}  // namespace motley::scheduling
