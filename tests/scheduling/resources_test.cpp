// Several resources a node and a worker: placements against every placement there is, what policies decide against
// sums over what jobs have, and DRF against the textbook's progressive filling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "motley/base/random.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/slot.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"
#include "tests/scheduling/elastic_job.h"
#include "tests/scheduling/random_int.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

// Nodes with CPUs and memory.
ClusterTopology random_topology(Random& random, int nodes, int devices) {
  ClusterTopology topology;
  topology.racks = random_int(random, 1, 2);
  topology.resources = {"cpu", "memory"};
  for (int i = 0; i < nodes; ++i) {
    topology.nodes.push_back({.name = fmt::format("s{}", i),
                              .devices = random_int(random, 1, devices),
                              .rack = random_int(random, 0, topology.racks - 1),
                              .resources = {double(random_int(random, 0, 12)), double(random_int(random, 0, 12))}});
  }
  return topology;
}

std::vector<double> random_requests(Random& random) {
  return {double(random_int(random, 0, 4)), double(random_int(random, 0, 4))};
}

// What jobs have at a time: by plain sums over nodes and resources.
bool keeps_to_what_there_is(const ClusterTopology& topology, const std::vector<Placement>& placements,
                            const std::vector<std::vector<double>>& requests) {
  for (std::size_t node = 0; node < topology.nodes.size(); ++node) {
    int devices = 0;
    std::vector<double> taken(topology.resources.size());
    for (std::size_t job = 0; job < placements.size(); ++job) {
      for (const Part& part : placements[job]) {
        if (index(part.node) != node) continue;
        devices += part.workers;
        for (std::size_t r = 0; r < requests[job].size(); ++r) taken[r] += part.workers * requests[job][r];
      }
    }
    if (devices > topology.nodes[node].devices) return false;
    for (std::size_t r = 0; r < taken.size(); ++r) {
      if (taken[r] > topology.nodes[node].resources[r] + 1e-6) return false;
    }
  }
  return true;
}

// All ways to put at most so many workers on the nodes.
std::vector<Placement> list_placements(const ClusterTopology& topology, int most) {
  std::vector<Placement> all;
  std::function<void(int, int, Placement)> from = [&](int node, int left, const Placement& so_far) {
    if (node == static_cast<int>(topology.nodes.size())) {
      all.push_back(so_far);
      return;
    }
    for (int workers = 0; workers <= std::min(left, topology.nodes[index(node)].devices); ++workers) {
      Placement more = so_far;
      if (workers > 0) more.push_back({node, workers});
      from(node + 1, left - workers, more);
    }
  };
  from(0, most, {});
  return all;
}

TEST(Resources, APlaceIsFoundWhereThereIsOne) {
  Random random(21);
  int found = 0, missing = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const ClusterTopology topology = random_topology(random, 3, 4);
    Job first{"a", 0, 1, 1}, second{"b", 0, 1, random_int(random, 1, 5)};
    first.requests = random_requests(random);
    second.requests = random_requests(random);
    for (const PlacementStrategy strategy :
         {PlacementStrategy::kAny, PlacementStrategy::kCompact, PlacementStrategy::kConsolidated}) {
      Placer placer(topology, strategy);
      const Placement taken = placer.place(first, first.workers);
      placer.take(first, taken);
      const Placement placement = placer.place(second, second.workers);
      const std::vector<std::vector<double>> requests = {first.requests, second.requests};
      const auto is_good = [&](const Placement& one) {
        return count_workers(one) == second.workers && keeps_to_what_there_is(topology, {taken, one}, requests);
      };
      const std::vector<Placement> all = list_placements(topology, second.workers);
      const bool there_is = std::ranges::any_of(all, is_good);
      const bool on_one = std::ranges::any_of(all, [&](const auto& one) { return one.size() == 1 && is_good(one); });
      EXPECT_TRUE(placement.empty() || is_good(placement)) << "trial " << trial;
      if (strategy != PlacementStrategy::kConsolidated) {
        EXPECT_EQ(!placement.empty(), there_is) << "trial " << trial;
        ++(there_is ? found : missing);
      }
      if (strategy != PlacementStrategy::kAny && on_one) {
        EXPECT_EQ(placement.size(), 1U) << "trial " << trial;
      }
    }
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(missing, 100);
}

TEST(Resources, WhatIsGivenBackIsThereAgain) {
  const ClusterTopology topology{.nodes = {{.name = "a", .devices = 4, .resources = {8}}}, .resources = {"cpu"}};
  Job job{"a", 0, 1, 2};
  job.requests = {3};
  Capacity capacity(topology);
  EXPECT_TRUE(capacity.find(3, job.demand()).empty()) << "nine CPUs";
  const Placement two = capacity.find(2, job.demand());
  ASSERT_EQ(two, (Placement{{0, 2}}));
  capacity.take(two, job.demand());
  EXPECT_EQ(capacity.rest().nodes[0].resources, std::vector<double>{2});
  EXPECT_EQ(capacity.devices().free(), 2);
  EXPECT_FALSE(capacity.fits({{0, 1}}, job.demand()));
  EXPECT_TRUE(capacity.fits({{0, 1}}, {})) << "of a job that requests no CPUs";
  capacity.release(two, job.demand());
  EXPECT_EQ(capacity.find(2, job.demand()), two);
}

TEST(Resources, TheSimulatorRefusesWhatIsNotThere) {
  const ClusterTopology topology{.nodes = {{.name = "a", .devices = 4, .resources = {8}}}, .resources = {"cpu"}};
  struct AllAtOnce final : Policy {
    std::string name() const override { return "all at once"; }
    Result<Decision> decide(const State& state) override {
      Decision decision;
      for (const int job : state.arrived) decision.changes.push_back({job, {{0, state.job(job).workers}}});
      return decision;
    }
  } policy;
  std::vector<Job> jobs = {{"a", 0, 10, 2}, {"b", 0, 10, 1}};
  jobs[0].requests = {3};
  jobs[1].requests = {2};
  EXPECT_TRUE(simulate(jobs, topology, policy));
  jobs[1].requests = {2.5};
  const auto outcome = simulate(jobs, topology, policy);
  ASSERT_FALSE(outcome);
  EXPECT_THAT(outcome.error().message, HasSubstr("gives 'b' 1 workers that it may not have"));
  jobs[1].requests = {9};
  const auto never = simulate(jobs, topology, policy);
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(never.error().message, HasSubstr("job 'b' asks for 1 worker with 9 cpu for each and can never run"));
}

// Jobs of all kinds under all policies: at every instant, what jobs have is there.
TEST(Resources, NoPolicyGivesMoreThanThereIs) {
  Random random(22);
  ClusterTopology topology = random_topology(random, 6, 8);
  for (Node& node : topology.nodes) node.resources = {4.0 * node.devices, 3.0 * node.devices};
  std::vector<Job> jobs;
  for (int i = 0; i < 30; ++i) {
    Job job = elastic_job(fmt::format("job{}", i), random_int(random, 0, 40), random_int(random, 5, 60), 1,
                          random_int(random, 1, 6));
    job.requests = random_requests(random);
    jobs.push_back(std::move(job));
  }
  std::ranges::stable_sort(jobs, {}, &Job::arrival);
  int refused = 0;
  for (const std::string& name : policy_names()) {
    SCOPED_TRACE(name);
    const auto policy = make_policy(name, {.placement = PlacementStrategy::kCompact, .slot_seconds = 5});
    if (!policy) continue;  // needs HiGHS, and this build has none
    const auto outcome = simulate(jobs, topology, **policy, {.keep_runs = true});
    if (!outcome) {
      EXPECT_THAT(outcome.error().message, HasSubstr("knows no resources but devices, and job 'job"));
      ++refused;
      continue;
    }
    std::vector<double> times;
    for (const scheduling::Run& run : outcome->runs) times.push_back(run.begin);
    for (const double time : times) {
      std::vector<Placement> placements;
      std::vector<std::vector<double>> requests;
      for (const scheduling::Run& run : outcome->runs) {
        if (run.begin > time || run.end <= time) continue;
        placements.push_back(run.placement);
        requests.push_back(jobs[index(run.job)].requests);
      }
      ASSERT_TRUE(keeps_to_what_there_is(topology, placements, requests)) << "at " << time << " s";
    }
    for (const JobOutcome& job : outcome->jobs) EXPECT_TRUE(std::isfinite(job.finished));
  }
  EXPECT_EQ(refused, 3) << "those that fix devices in advance";
}

// The numbers of workers that DRF begins with, in one place.
std::vector<int> drf_workers(const ClusterTopology& topology, const std::vector<Job>& jobs) {
  const auto policy = make_policy("drf", {.slot_seconds = 10});
  const auto outcome = simulate(jobs, topology, **policy, {.keep_runs = true, .horizon = 5});
  EXPECT_TRUE(outcome) << outcome.error().message;
  std::vector<int> workers(jobs.size());
  for (const scheduling::Run& run : outcome->runs) workers[index(run.job)] = count_workers(run.placement);
  return workers;
}

// Ghodsi et al., section 4.1: of 9 CPUs and 18 GB, three tasks of 1 CPU and 4 GB, and two of 3 CPUs and 1 GB.
TEST(Drf, SharesAsInItsPaper) {
  const ClusterTopology topology{.nodes = {{.name = "a", .devices = 100, .resources = {9, 18}}},
                                 .resources = {"cpu", "memory"}};
  std::vector<Job> jobs = {elastic_job("a", 0, 100, 1, 50), elastic_job("b", 0, 100, 1, 50)};
  jobs[0].requests = {1, 4};
  jobs[1].requests = {3, 1};
  EXPECT_EQ(drf_workers(topology, jobs), (std::vector<int>{3, 2}));
}

// Progressive filling as the textbook has it: whoever has the least dominant share gets the next task if it fits, and
// is out otherwise.
std::vector<int> fill_progressively(const Node& node, const std::vector<Job>& jobs) {
  std::vector<double> totals = node.resources;
  totals.push_back(node.devices);
  std::vector<double> used(totals.size());
  std::vector<int> tasks(jobs.size());
  std::vector<bool> is_out(jobs.size());
  const auto demand = [&](std::size_t job, std::size_t r) { return r < 2 ? jobs[job].requests[r] : 1.0; };
  while (true) {
    std::size_t next = jobs.size();
    double least = 2;
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      double share = 0;
      for (std::size_t r = 0; r < totals.size(); ++r) share = std::max(share, tasks[job] * demand(job, r) / totals[r]);
      if (is_out[job] || share >= least) continue;
      next = job;
      least = share;
    }
    if (next == jobs.size()) return tasks;
    bool fits = tasks[next] < jobs[next].max_workers();
    for (std::size_t r = 0; r < totals.size(); ++r) fits = fits && used[r] + demand(next, r) <= totals[r];
    if (!fits) {
      is_out[next] = true;
      continue;
    }
    ++tasks[next];
    for (std::size_t r = 0; r < totals.size(); ++r) used[r] += demand(next, r);
  }
}

TEST(Drf, SharesAsProgressiveFillingDoes) {
  Random random(23);
  for (int trial = 0; trial < 200; ++trial) {
    const Node node{.name = "a",
                    .devices = random_int(random, 4, 30),
                    .resources = {double(random_int(random, 10, 60)), double(random_int(random, 10, 60))}};
    std::vector<Job> jobs;
    for (int i = 0; i < 5; ++i) {
      Job job = elastic_job(fmt::format("job{}", i), 0, 1e6, 1, random_int(random, 1, 12));
      job.requests = {double(random_int(random, 1, 7)), double(random_int(random, 1, 7))};
      jobs.push_back(std::move(job));
    }
    EXPECT_EQ(drf_workers({.nodes = {node}, .resources = {"cpu", "memory"}}, jobs), fill_progressively(node, jobs))
        << "trial " << trial;
  }
}

// The slot solver against all packings that keep to what there is.
TEST(Resources, TheSlotSolverIsNearTheBestPacking) {
  Random random(24);
  double sum = 0, best_sum = 0;
  for (int trial = 0; trial < 60; ++trial) {
    SlotProblem problem{random_topology(random, 2, 3), {}};
    std::vector<std::vector<double>> requests;
    for (int i = 0; i < 3; ++i) {
      SlotJob job;
      const double scale = 0.2 + random.uniform();
      const double power = 0.4 + 0.6 * random.uniform();
      for (int workers = 0; workers <= 3; ++workers) job.value[0].push_back(scale * std::pow(workers, power));
      job.value[2] = job.value[1] = job.value[0];
      job.requests = random_requests(random);
      requests.push_back(job.requests);
      problem.jobs.push_back(std::move(job));
    }
    double best = 0;
    const std::vector<Placement> all = list_placements(problem.topology, 3);
    for (const Placement& a : all) {
      for (const Placement& b : all) {
        if (!keeps_to_what_there_is(problem.topology, {a, b}, requests)) continue;
        for (const Placement& c : all) {
          if (!keeps_to_what_there_is(problem.topology, {a, b, c}, requests)) continue;
          double value = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            value += problem.jobs[i].value[0][index(count_workers(i == 0 ? a : i == 1 ? b : c))];
          }
          best = std::max(best, value);
        }
      }
    }
    const SlotAnswer answer = solve_slot(problem);
    EXPECT_TRUE(keeps_to_what_there_is(problem.topology, answer.placements, requests));
    EXPECT_LE(answer.value, best * (1 + 1e-9));
    EXPECT_GE(answer.bound, best * (1 - 1e-9));
    EXPECT_GE(answer.value, 0.9 * best) << "trial " << trial;
    sum += answer.value;
    best_sum += best;
  }
  EXPECT_GE(sum, 0.99 * best_sum);
}

}  // namespace
}  // namespace motley::scheduling
