// Plans whose stages mix types of devices, against what mixing must reach at least, and against a closed form.
#include "motley/planning/replan/heterogeneous_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "motley/base/random.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/planner.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::planning {
namespace {

// Types that differ in speed by up to ten, links that are fast or slow, one or two devices a type.
planning::Problem random_problem(Random& random) {
  planning::Problem problem;
  problem.model = "random";
  problem.cost_model = planning::CostModel::kPipeline;
  const int types = 1 + static_cast<int>(random.below(3)), layers = 3 + static_cast<int>(random.below(4));
  const double bandwidth = random.below(2) == 0 ? 1e7 : 1e9;
  std::vector<double> slowness;
  for (int type = 0; type < types; ++type) {
    slowness.push_back(std::exp(2.3 * random.uniform()));
    problem.types.push_back({.name = fmt::format("type-{}", type),
                             .count = 1 + static_cast<std::int64_t>(random.below(2)),
                             .bytes_per_second = bandwidth});
  }
  for (int layer = 0; layer < layers; ++layer) {
    problem.layers.push_back(
        {.name = fmt::format("layer-{}", layer), .parameter_bytes = 1e6 * random.uniform(), .activation_bytes = 1e4});
    const double forward = 1e-4 * (0.2 + random.uniform());
    for (const double slow : slowness) {
      problem.table.push_back({{1e-5, forward * slow}, {1e-5, 2 * forward * slow}});
    }
    problem.cut_bytes.push_back(1e4 * random.uniform());
  }
  problem.cut_bytes.push_back(0);
  for (int pair = 0; pair < types * types; ++pair) problem.links.push_back({bandwidth, 1e-5});
  problem.batch = 64;
  problem.micro_batches = 4;
  return problem;
}

planning::Plan exact_plan(const planning::Problem& problem) {
  const planning::Objective objective{.criterion = planning::Criterion::kMinStepTime};
  const auto answer = plan_exact({.problem = problem, .objective = objective});
  EXPECT_TRUE(answer && answer->best);
  return planning::to_plan(problem, *answer->best, answer->evaluation, objective, "exact");
}

double compute_step(const planning::Problem& problem, const planning::Plan& plan) {
  const auto timeline = planning::simulate(problem, plan, {.keep_events = false});
  EXPECT_TRUE(timeline) << timeline.error().message;
  return timeline ? timeline->step_seconds : 0;
}

// Stages, and devices.
std::pair<std::size_t, std::int64_t> size(const planning::Plan& plan) {
  std::int64_t devices = 0;
  for (const planning::Stage& stage : plan.stages) {
    for (const planning::Replicas& replicas : stage.replicas) devices += replicas.count;
  }
  return {plan.stages.size(), devices};
}

TEST(HeterogeneousStages, AreTheSimplestOfThoseThatAreNoSlowerThanAnyPlanOfOneTypeAStage) {
  Random random(61);
  int better = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const planning::Problem problem = random_problem(random);
    const planning::Plan plan = exact_plan(problem);
    const auto plans = find_heterogeneous_stages(problem, plan, {});
    ASSERT_TRUE(plans) << plans.error().message;
    const planning::Plan* mixed = &plans->front();
    ASSERT_TRUE(planning::validate(*mixed, "mixed"));
    const auto seconds = [](const planning::Plan& one) { return one.predicted.step_seconds; };
    EXPECT_TRUE(std::is_sorted(plans->begin() + 1, plans->end(),
                               [&](const auto& a, const auto& b) { return seconds(a) < seconds(b); }));
    const double shortest = seconds(*std::ranges::min_element(*plans, {}, seconds));
    EXPECT_LE(seconds(*mixed), 1.02 * shortest);
    for (const planning::Plan& one : *plans) {
      EXPECT_TRUE(seconds(one) > 1.02 * shortest || size(one) >= size(*mixed));
    }
    const auto is_given = [&](const planning::Plan& one) {
      return one.stages == plan.stages && one.micro_batches == plan.micro_batches;
    };
    EXPECT_EQ(std::ranges::count_if(*plans, is_given), 1);
    const double before = compute_step(problem, plan), after = compute_step(problem, *mixed);
    EXPECT_LE(after, before * 1.02);
    EXPECT_NEAR(after, mixed->predicted.step_seconds, 1e-9);
    better += after < before * 0.99 ? 1 : 0;
    std::vector<std::int64_t> used(problem.types.size());
    for (const planning::Stage& stage : mixed->stages) {
      for (const planning::Replicas& replicas : stage.replicas) {
        const auto type = std::ranges::find(problem.types, replicas.type, &planning::Type::name);
        ASSERT_NE(type, problem.types.end());
        used[static_cast<std::size_t>(type - problem.types.begin())] += replicas.count;
      }
    }
    for (std::size_t type = 0; type < used.size(); ++type) EXPECT_LE(used[type], problem.types[type].count);
  }
  EXPECT_GT(better, 5);
}

// Nothing to exchange and activations too large to send: each device computes its part of the batch, all the while.
TEST(HeterogeneousStages, SplitABatchAmongHeterogeneousDevicesWhereThatIsBest) {
  Random random(62);
  planning::Problem problem = random_problem(random);
  problem.types = {{.name = "fast", .count = 1, .bytes_per_second = 1e9},
                   {.name = "slow", .count = 2, .bytes_per_second = 1e9}};
  problem.links.assign(4, {1e9, 0});
  problem.layers.resize(2);
  problem.cut_bytes = {0, 1e12, 0};
  problem.table.clear();
  for (planning::LayerSize& layer : problem.layers) {
    layer.parameter_bytes = 0;
    problem.table.push_back({{0, 1e-3}, {0, 2e-3}});
    problem.table.push_back({{0, 2e-3}, {0, 4e-3}});
  }
  const auto mixed = find_heterogeneous_stages(problem, exact_plan(problem), {});
  ASSERT_TRUE(mixed) << mixed.error().message;
  EXPECT_NEAR(mixed->front().predicted.step_seconds, 64 * 6e-3 / 2, 1e-9)
      << "one fast device and two of half its speed";
}

TEST(HeterogeneousStages, KeepToTheDevicesMemory) {
  Random random(63);
  planning::Problem problem = random_problem(random);
  double state = 0;
  for (planning::LayerSize& layer : problem.layers) {
    layer.parameter_bytes = 1e6;
    state += problem.memory_per_parameter_byte * layer.parameter_bytes;
  }
  problem.types.resize(1);
  problem.types[0].count = 2;
  problem.types[0].memory_bytes = 0.8 * state;
  problem.links.resize(1);
  std::vector<planning::LayerOnType> table;
  for (std::size_t layer = 0; layer < problem.layers.size(); ++layer) {
    table.push_back(problem.table[layer * problem.table.size() / problem.layers.size()]);
  }
  problem.table = table;
  const auto mixed = find_heterogeneous_stages(problem, exact_plan(problem), {});
  ASSERT_TRUE(mixed) << mixed.error().message;
  EXPECT_EQ(mixed->front().stages.size(), 2U) << "no device holds all layers";
}

}  // namespace
}  // namespace motley::planning
