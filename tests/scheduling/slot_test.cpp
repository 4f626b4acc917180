// The slot solver against every packing there is of small problems, and its laws on larger ones.
#include "motley/scheduling/policies/slot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "motley/base/random.h"
#include "tests/scheduling/random_int.h"

namespace motley::scheduling {
namespace {

double between(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

// Values that rise with the workers, steeply or not, concave or not, and are less where the ring is longer.
SlotJob random_job(Random& random, int most) {
  SlotJob job;
  const double power = between(random, 0.3, 1.3);
  const double scale = between(random, 0.2, 3);
  double loss = 1;
  for (auto& values : job.value) {
    values = {0};
    for (int workers = 1; workers <= most; ++workers) values.push_back(loss * scale * std::pow(workers, power));
    loss *= between(random, 0.6, 1);
  }
  job.reserve = between(random, 0, 3);
  return job;
}

SlotProblem random_problem(Random& random, int nodes, int devices, int jobs, int most) {
  SlotProblem problem;
  problem.topology.racks = random_int(random, 1, 2);
  for (int i = 0; i < nodes; ++i) {
    problem.topology.nodes.push_back({fmt::format("s{}", i), random_int(random, 1, devices),
                                      random_int(random, 0, problem.topology.racks - 1), between(random, 1, 8)});
  }
  for (int i = 0; i < problem.topology.racks; ++i) problem.topology.rack_uplinks.push_back(between(random, 1, 8));
  for (int i = 0; i < jobs; ++i) problem.jobs.push_back(random_job(random, random_int(random, 1, most)));
  return problem;
}

// Servers of two types, and jobs whose utility differs between them, or is 0 on one.
void make_heterogeneous(SlotProblem& problem, Random& random) {
  problem.topology.types = {"new", "old"};
  for (Node& node : problem.topology.nodes) node.type = random_int(random, 0, 1);
  for (SlotJob& job : problem.jobs) {
    if (random.below(4) == 0) continue;  // may have both at a time
    for (int type = 0; type < 2; ++type) {
      const double factor = random.below(6) == 0 ? 0 : between(random, 0.1, 1);
      WorkerUtilities utility = job.value;
      for (auto& values : utility) {
        for (double& value : values) value *= factor;
      }
      job.type_values.push_back(std::move(utility));
    }
  }
}

// All ways to put at most so many workers on the nodes.
std::vector<Placement> all_placements(const ClusterTopology& topology, int most) {
  std::vector<Placement> all;
  std::function<void(std::size_t, int, Placement)> from = [&](std::size_t node, int left, const Placement& so_far) {
    if (node == topology.nodes.size()) {
      all.push_back(so_far);
      return;
    }
    for (int workers = 0; workers <= std::min(left, topology.nodes[node].devices); ++workers) {
      Placement more = so_far;
      if (workers > 0) more.push_back({static_cast<int>(node), workers});
      from(node + 1, left - workers, more);
    }
  };
  from(0, most, {});
  return all;
}

double best_of_all(const SlotProblem& problem) {
  std::vector<std::vector<Placement>> placements;
  for (const SlotJob& job : problem.jobs) placements.push_back(all_placements(problem.topology, job.max_workers()));
  double best = 0;
  std::vector<Placement> chosen;
  std::function<void(double)> from = [&](double value) {
    if (!fits(problem, chosen)) return;
    if (chosen.size() == problem.jobs.size()) {
      best = std::max(best, value);
      return;
    }
    const std::size_t number = chosen.size();
    for (const Placement& placement : placements[number]) {
      chosen.push_back(placement);
      from(value + compute_value(problem.topology, problem.jobs[number], placement));
      chosen.pop_back();
    }
  };
  from(0);
  return best;
}

void expect_lawful(const SlotProblem& problem, const SlotAnswer& answer) {
  ASSERT_EQ(answer.placements.size(), problem.jobs.size());
  EXPECT_TRUE(fits(problem, answer.placements));
  double value = 0;
  for (std::size_t i = 0; i < problem.jobs.size(); ++i) {
    EXPECT_LE(count_workers(answer.placements[i]), problem.jobs[i].max_workers());
    value += compute_value(problem.topology, problem.jobs[i], answer.placements[i]);
  }
  EXPECT_NEAR(answer.value, value, 1e-9 * (1 + value));
  EXPECT_LE(answer.value, answer.bound * (1 + 1e-12));
}

// Where jobs run at random, and lose something if they move.
void start_some(SlotProblem& problem, Random& random) {
  std::vector<Placement> placements;
  for (SlotJob& job : problem.jobs) {
    const std::vector<Placement> all = all_placements(problem.topology, job.max_workers());
    placements.push_back(all[random.below(all.size())]);
    if (!fits(problem, placements)) placements.back().clear();
    job.now = placements.back();
    job.moving = between(random, 0, 0.5);
  }
}

void compare_with_all_packings(std::uint64_t seed, bool is_heterogeneous) {
  Random random(seed);
  double sum = 0, worst = 1;
  constexpr int kTrials = 150;
  for (int trial = 0; trial < kTrials; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    SlotProblem problem = random_problem(random, 3, 2, 3, 4);
    if (is_heterogeneous) make_heterogeneous(problem, random);
    if (trial % 3 == 0) start_some(problem, random);
    const SlotAnswer answer = solve_slot(problem);
    expect_lawful(problem, answer);
    const double best = best_of_all(problem);
    EXPECT_GE(answer.bound, best * (1 - 1e-12));
    const double share = best > 0 ? answer.value / best : 1;
    sum += share;
    worst = std::min(worst, share);
  }
  EXPECT_GE(sum / kTrials, 0.999);
  EXPECT_GE(worst, 0.95);
}

TEST(Slot, IsAsGoodAsTheBestOfAllPackings) {
  compare_with_all_packings(6, false);
}

TEST(Slot, IsAsGoodAsTheBestOfAllPackingsOnHeterogeneousDevices) {
  compare_with_all_packings(16, true);
}

// With many small jobs there is little that whole workers and places cost: the bound must be near.
TEST(Slot, TheBoundOnHeterogeneousDevicesIsNear) {
  Random random(17);
  for (int trial = 0; trial < 20; ++trial) {
    SlotProblem problem = random_problem(random, 20, 8, 120, 6);
    make_heterogeneous(problem, random);
    for (Node& node : problem.topology.nodes) node.uplink = 1e9;
    problem.topology.rack_uplinks.clear();
    for (SlotJob& job : problem.jobs) {
      job.value[1] = job.value[2] = job.value[0];
      for (WorkerUtilities& utility : job.type_values) utility[1] = utility[2] = utility[0];
    }
    const SlotAnswer answer = solve_slot(problem);
    expect_lawful(problem, answer);
    EXPECT_GE(answer.value, 0.97 * answer.bound) << "trial " << trial;
  }
}

TEST(Slot, NeverGivesAnythingTwice) {
  Random random(7);
  for (int trial = 0; trial < 200; ++trial) {
    SlotProblem problem = random_problem(random, random_int(random, 1, 12), 8, random_int(random, 0, 30), 9);
    if (trial % 4 == 0) make_heterogeneous(problem, random);
    expect_lawful(problem, solve_slot(problem, {.rounds = 30}));
  }
}

TEST(Slot, IsTheSameEveryTime) {
  Random random(8);
  const SlotProblem problem = random_problem(random, 10, 8, 40, 8);
  const SlotAnswer one = solve_slot(problem);
  const SlotAnswer other = solve_slot(problem);
  EXPECT_EQ(one.placements, other.placements);
  EXPECT_EQ(one.value, other.value);
}

TEST(Slot, AJobStaysWhereItIsIfMovingIsDear) {
  SlotProblem problem;
  problem.topology = uniform(2, 4);
  SlotJob job;
  for (auto& values : job.value) values = {0, 1, 2, 3, 4};
  job.now = {{1, 3}};
  job.moving = 0.3;
  problem.jobs = {job};
  EXPECT_EQ(solve_slot(problem).placements[0], job.now) << "a fourth worker has less utility than the move costs";
  problem.jobs[0].moving = 0.2;
  EXPECT_EQ(count_workers(solve_slot(problem).placements[0]), 4);
}

TEST(Slot, UplinksBindOnlyRingsThatGoOverThem) {
  SlotProblem problem;
  problem.topology = uniform(2, 2);
  for (Node& node : problem.topology.nodes) node.uplink = 1;
  SlotJob job;
  for (auto& values : job.value) values = {0, 1, 2, 3.5};
  job.reserve = 0.75;
  problem.jobs = {job};
  EXPECT_EQ(count_workers(solve_slot(problem).placements[0]), 3);
  problem.jobs = {job, job};  // two rings over both uplinks would need 1.5
  const SlotAnswer answer = solve_slot(problem);
  EXPECT_DOUBLE_EQ(answer.value, 4.5) << "three and one, or two and two within a server";
  problem.jobs[0].reserve = problem.jobs[1].reserve = 1.5;
  EXPECT_DOUBLE_EQ(solve_slot(problem).value, 4) << "no ring may leave its server";
  EXPECT_FALSE(fits(problem, {{{0, 2}, {1, 1}}, {}}));
  EXPECT_TRUE(fits(problem, {{{0, 2}}, {{1, 2}}}));
}

}  // namespace
}  // namespace motley::scheduling
