// The relaxation against a program over all mappings, written down one by one; and what is drawn from it.
#include "motley/scheduling/policies/rounding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "motley/scheduling/policies/program.h"

namespace motley::scheduling {
namespace {

SlotProblem random_problem(Random& random, int servers, int jobs, int most) {
  const auto whole = [&](int low, int high) {
    return low + static_cast<int>(random.below(static_cast<std::uint64_t>(high - low + 1)));
  };
  SlotProblem problem;
  problem.machines.racks = 2;
  for (int i = 0; i < servers; ++i) {
    problem.machines.servers.push_back({"", whole(1, 3), i % 2, 0.5 + 2 * random.uniform()});
  }
  problem.machines.rack_uplinks = {0.5 + 2 * random.uniform(), 0.5 + 2 * random.uniform()};
  for (int i = 0; i < jobs; ++i) {
    SlotJob job;
    std::vector<double> values = {0};
    for (int k = 1; k <= whole(1, most); ++k) values.push_back(values.back() + 1 + 2 * random.uniform());
    job.value = {values, values, values};
    job.reserve = random.uniform();
    problem.jobs.push_back(std::move(job));
  }
  return problem;
}

// Loads of a ring whose workers are on these servers in this order: devices, links of servers, links of racks.
struct Loads {
  std::map<int, double> devices, uplinks, rack_uplinks;
};
Loads loads_of(const Machines& machines, const std::vector<int>& ring, double reserve) {
  Loads loads;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const int from = ring[i];
    const int to = ring[(i + 1) % ring.size()];
    const int from_rack = machines.servers[static_cast<std::size_t>(from)].rack;
    loads.devices[from] += 1;
    if (from != to) loads.uplinks[from] += reserve;
    if (from_rack != machines.servers[static_cast<std::size_t>(to)].rack) loads.rack_uplinks[from_rack] += reserve;
  }
  return loads;
}

// The greatest expected worth over all mappings of rings of these sizes, each of which fits in itself.
double optimum(const SlotProblem& problem, const std::vector<int>& workers, Mappings mappings) {
  const Machines& machines = problem.machines;
  const auto servers = static_cast<int>(machines.servers.size());
  Program program;
  std::map<int, Program::Terms> devices, uplinks, rack_uplinks;
  for (std::size_t job = 0; job < workers.size(); ++job) {
    const int size = workers[job];
    if (size == 0) continue;
    const double reserve = problem.jobs[job].reserve;
    Program::Terms one;
    std::vector<int> ring(static_cast<std::size_t>(size));
    for (int code = 0; code < std::pow(servers, size); ++code) {
      for (int i = 0, rest = code; i < size; ++i, rest /= servers) ring[static_cast<std::size_t>(i)] = rest % servers;
      const Loads loads = loads_of(machines, ring, reserve);
      // Part by part: each worker has a device of its own anywhere, each link its part of an uplink.
      const auto fits = [&](double load, double part, double capacity) {
        return (mappings == Mappings::kWhole ? load : part) <= capacity + 1e-12;
      };
      bool is_valid = true;
      for (const auto& [server, load] : loads.devices) {
        is_valid = is_valid && fits(load, 1, machines.servers[static_cast<std::size_t>(server)].devices);
      }
      for (const auto& [server, load] : loads.uplinks) {
        is_valid = is_valid && fits(load, reserve, machines.servers[static_cast<std::size_t>(server)].uplink);
      }
      for (const auto& [rack, load] : loads.rack_uplinks) {
        is_valid = is_valid && fits(load, reserve, machines.rack_uplink(rack));
      }
      if (!is_valid) continue;
      const int variable = program.add_variable(problem.jobs[job].value[0][static_cast<std::size_t>(size)], 0, 1);
      one.emplace_back(variable, 1);
      for (const auto& [server, load] : loads.devices) devices[server].emplace_back(variable, load);
      for (const auto& [server, load] : loads.uplinks) uplinks[server].emplace_back(variable, load);
      for (const auto& [rack, load] : loads.rack_uplinks) rack_uplinks[rack].emplace_back(variable, load);
    }
    program.add_limit(one, -Program::kUnlimited, 1);
  }
  for (const auto& [server, terms] : devices) {
    program.add_limit(terms, -Program::kUnlimited, machines.servers[static_cast<std::size_t>(server)].devices);
  }
  for (const auto& [server, terms] : uplinks) {
    program.add_limit(terms, -Program::kUnlimited, machines.servers[static_cast<std::size_t>(server)].uplink);
  }
  for (const auto& [rack, terms] : rack_uplinks) {
    program.add_limit(terms, -Program::kUnlimited, machines.rack_uplink(rack));
  }
  return program.maximise()->worth;
}

class RoundingTest : public ::testing::TestWithParam<Mappings> {
 protected:
  void SetUp() override {
    if (!has_program_solver()) GTEST_SKIP() << "needs HiGHS, and this build has none";
  }
};

TEST_P(RoundingTest, TheRelaxationIsThatOverAllMappings) {
  Random random(1);
  for (int trial = 0; trial < 40; ++trial) {
    const SlotProblem problem = random_problem(random, 4, 5, 4);
    const auto slot = relax_slot(problem, GetParam());
    ASSERT_TRUE(slot) << slot.error().message;
    EXPECT_NEAR(slot->optimum, optimum(problem, slot->workers, GetParam()), 1e-6) << "trial " << trial;
    EXPECT_LE(slot->optimum, slot->selection + 1e-6);
    EXPECT_GE(slot->selection, solve_slot(problem).value - 1e-6);
  }
}

TEST_P(RoundingTest, ExpectedLoadsStayWithinCapacities) {
  Random random(2);
  for (int trial = 0; trial < 40; ++trial) {
    const SlotProblem problem = random_problem(random, 6, 8, 5);
    const auto slot = relax_slot(problem, GetParam());
    ASSERT_TRUE(slot) << slot.error().message;
    std::vector<double> devices(problem.machines.servers.size());
    for (const auto& choices : slot->choices) {
      double sum = 0;
      for (const auto& choice : choices) {
        sum += choice.probability;
        for (const Part& part : choice.placement) {
          devices[static_cast<std::size_t>(part.server)] += choice.probability * part.workers;
        }
      }
      EXPECT_LE(sum, 1 + 1e-6);
    }
    for (std::size_t i = 0; i < devices.size(); ++i) EXPECT_LE(devices[i], problem.machines.servers[i].devices + 1e-6);
  }
}

TEST_P(RoundingTest, WhereNothingIsWorthAnythingNobodyHasARing) {
  SlotProblem problem;
  problem.machines = uniform(2, 2);
  problem.jobs.resize(2, {.value = {{{0, 0}, {0, 0}, {0, 0}}}});
  const auto slot = relax_slot(problem, GetParam());
  ASSERT_TRUE(slot) << slot.error().message;
  EXPECT_EQ(slot->optimum, 0);
  Random random(1);
  EXPECT_THAT(round_at_random(*slot, random), ::testing::Each(Placement()));
}

TEST_P(RoundingTest, LotsFallAsOftenAsTheyShould) {
  Random random(3);
  const SlotProblem problem = random_problem(random, 4, 6, 4);
  const auto slot = relax_slot(problem, GetParam());
  ASSERT_TRUE(slot) << slot.error().message;
  constexpr int kDrawings = 20'000;
  std::vector<int> placed(problem.jobs.size());
  for (int drawing = 0; drawing < kDrawings; ++drawing) {
    const std::vector<Placement> placements = round_at_random(*slot, random);
    for (std::size_t i = 0; i < placements.size(); ++i) placed[i] += placements[i].empty() ? 0 : 1;
  }
  for (std::size_t i = 0; i < placed.size(); ++i) {
    double sum = 0;
    for (const auto& choice : slot->choices[i]) sum += choice.probability;
    EXPECT_NEAR(placed[i] / static_cast<double>(kDrawings), sum, 0.02) << "job " << i;
  }
}

TEST_P(RoundingTest, WhatFitsFits) {
  Random random(4);
  for (int trial = 0; trial < 100; ++trial) {
    const SlotProblem problem = random_problem(random, 5, 10, 5);
    const auto slot = relax_slot(problem, GetParam());
    ASSERT_TRUE(slot) << slot.error().message;
    EXPECT_TRUE(fits(problem, round_what_fits(problem, *slot, random)));
  }
}

INSTANTIATE_TEST_SUITE_P(Mappings, RoundingTest, ::testing::Values(Mappings::kPartByPart, Mappings::kWhole),
                         [](const auto& mappings) {
                           return mappings.param == Mappings::kWhole ? "Whole" : "PartByPart";
                         });

}  // namespace
}  // namespace motley::scheduling
