// The plan that is found for workers of any speeds, against all plans there are.
#include "motley/planning/replan/repartition.h"

#include <gtest/gtest.h>

#include <numeric>

#include "motley/base/random.h"
#include "motley/planning/simulate/simulate.h"

namespace motley::planning {
namespace {

planning::Problem random_problem(Random& random, int layers, int types) {
  planning::Problem problem;
  problem.model = "random";
  problem.cost_model = planning::CostModel::kPipeline;
  for (int type = 0; type < types; ++type) {
    problem.types.push_back({.name = fmt::format("type-{}", type), .count = 4, .bytes_per_second = 1e8});
  }
  for (int layer = 0; layer < layers; ++layer) {
    problem.layers.push_back({.name = fmt::format("layer-{}", layer), .parameter_bytes = 1e5 * random.uniform()});
    for (int type = 0; type < types; ++type) {
      const double forward = 1e-4 * (0.2 + random.uniform());
      problem.table.push_back({{1e-4 * random.uniform(), forward}, {1e-4 * random.uniform(), 2 * forward}});
    }
    problem.cut_bytes.push_back(1e4 * random.uniform());
  }
  problem.cut_bytes.push_back(0);
  for (int pair = 0; pair < types * types; ++pair) problem.links.push_back({1e8, 1e-5});
  problem.batch = 64;
  problem.micro_batches = 4;
  return problem;
}

// The share of a micro-batch of each worker of a stage for all to finish together, by bisection.
std::vector<double> balanced(const planning::Problem& problem, const std::vector<int>& workers, int first, int last,
                             double samples) {
  std::vector<double> shares(workers.size());
  double least = 0, most = 1e3;
  for (int i = 0; i < 200; ++i) {
    const double seconds = (least + most) / 2;
    double sum = 0;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      double fixed = 0, per_sample = 0;
      for (int layer = first; layer <= last; ++layer) {
        const planning::LayerOnType& time = problem.at(layer, workers[w]);
        fixed += time.forward.fixed + time.backward.fixed;
        per_sample += time.forward.per_sample + time.backward.per_sample;
      }
      shares[w] = std::max(0.0, (seconds - fixed) / per_sample) / samples;
      sum += shares[w];
    }
    (sum < 1 ? least : most) = seconds;
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

// The shortest step of all: every way to give workers to stages, every cut, and the micro-batches that are looked at.
double best_of_all(const planning::Problem& workers, const planning::Plan& running) {
  double best = 1e300;
  const int layers = workers.layer_count(), count = workers.type_count();
  for (const std::int64_t micro_batches :
       {running.micro_batches / 2, running.micro_batches, 2 * running.micro_batches}) {
    for (int stages = 1; stages <= std::min(layers, count); ++stages) {
      const auto maps = static_cast<int>(std::pow(stages, count) + 0.5);
      for (int map = 0; map < maps; ++map) {
        std::vector<std::vector<int>> of_stage(static_cast<std::size_t>(stages));
        for (int worker = 0, rest = map; worker < count; ++worker, rest /= stages) {
          of_stage[static_cast<std::size_t>(rest % stages)].push_back(worker);
        }
        if (std::ranges::any_of(of_stage, [](const auto& of) { return of.empty(); })) continue;
        for (int cuts = 0; cuts < 1 << (layers - 1); ++cuts) {
          if (std::popcount(static_cast<unsigned>(cuts)) != stages - 1) continue;
          planning::Plan plan = running;
          plan.micro_batches = micro_batches;
          plan.stages.clear();
          int first = 0;
          for (int layer = 0; layer < layers; ++layer) {
            if (layer + 1 < layers && (cuts >> layer & 1) == 0) continue;
            const auto& own = of_stage[plan.stages.size()];
            const auto shares = balanced(workers, own, first, layer,
                                         static_cast<double>(plan.batch) / static_cast<double>(micro_batches));
            planning::Stage stage{
                first, layer, {}, own.size() > 1 ? planning::GradientSync::kRing : planning::GradientSync::kNone};
            for (std::size_t w = 0; w < own.size(); ++w) {
              stage.replicas.push_back({workers.types[static_cast<std::size_t>(own[w])].name, 1, shares[w]});
            }
            plan.stages.push_back(std::move(stage));
            first = layer + 1;
          }
          planning::Problem problem = workers;
          problem.micro_batches = micro_batches;
          const auto timeline = planning::simulate(problem, plan, {.keep_events = false});
          EXPECT_TRUE(timeline) << timeline.error().message;
          if (timeline) best = std::min(best, timeline->step_seconds);
        }
      }
    }
  }
  return best;
}

planning::Plan even_plan(const planning::Problem& problem, int stages) {
  planning::Plan plan;
  plan.model = problem.model;
  for (const planning::LayerSize& layer : problem.layers) plan.layers.push_back(layer.name);
  plan.batch = problem.batch;
  plan.micro_batches = problem.micro_batches;
  plan.cost_model = "pipeline";
  for (int s = 0; s < stages; ++s) {
    const int first = problem.layer_count() * s / stages, end = problem.layer_count() * (s + 1) / stages;
    plan.stages.push_back({first, end - 1, {{problem.types[static_cast<std::size_t>(s)].name, 1, 1}}});
  }
  return plan;
}

TEST(Repartition, ComesCloseToTheBestOfAllPlans) {
  Random random(21);
  double sum = 0;
  constexpr int kTrials = 30;
  for (int trial = 0; trial < kTrials; ++trial) {
    const int count = 2 + static_cast<int>(random.below(2));
    const planning::Problem types = random_problem(random, 4 + static_cast<int>(random.below(3)), 2);
    std::vector<WorkerSpeed> speeds;
    for (int worker = 0; worker < count; ++worker) {
      speeds.push_back({static_cast<int>(random.below(2)), 0.5 + 3 * random.uniform()});
    }
    const planning::Problem workers = problem_of_workers(types, speeds);
    std::vector<int> places(static_cast<std::size_t>(count));
    std::iota(places.begin(), places.end(), 0);
    const planning::Plan plan = even_plan(workers, count);
    const auto running = make_placement(workers, plan, places);
    ASSERT_TRUE(running) << running.error().message;
    const auto found = repartition(workers, *running, {});
    ASSERT_TRUE(found) << found.error().message;
    ASSERT_TRUE(planning::validate(found->plan, "found"));
    std::vector<int> used = found->workers;
    std::ranges::sort(used);
    EXPECT_EQ(used, places) << "every worker in one place";
    EXPECT_LE(found->step_seconds, running->step_seconds * (1 + 1e-9));
    const double best = best_of_all(workers, plan);
    EXPECT_GE(found->step_seconds, best * (1 - 1e-6));
    EXPECT_LE(found->step_seconds, best * 1.1);
    sum += found->step_seconds / best / kTrials;
  }
  EXPECT_LT(sum, 1.02) << "in the mean";
}

// Too many ways to look at all of them: what is found is no worse than what runs, and uses everybody.
TEST(Repartition, ImprovesWhatRunsWhereWorkersAreMany) {
  Random random(22);
  const planning::Problem types = random_problem(random, 24, 2);
  std::vector<WorkerSpeed> speeds;
  std::vector<int> places;
  for (int worker = 0; worker < 12; ++worker) {
    speeds.push_back({worker % 2, worker == 5 ? 4.0 : 1.0});
    places.push_back(worker);
  }
  planning::Problem workers = problem_of_workers(types, speeds);
  planning::Plan plan = even_plan(workers, 4);
  for (int s = 0; s < 4; ++s) {
    planning::Stage& stage = plan.stages[static_cast<std::size_t>(s)];
    stage.gradient_sync = planning::GradientSync::kRing;
    stage.replicas.clear();
    for (int i = 0; i < 3; ++i) stage.replicas.push_back({fmt::format("worker-{}", 3 * s + i), 1, 1.0 / 3});
  }
  const auto running = make_placement(workers, plan, places);
  ASSERT_TRUE(running) << running.error().message;
  const auto found = repartition(workers, *running, {});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_LT(found->step_seconds, running->step_seconds);
  EXPECT_EQ(found->workers.size(), 12U);
}

TEST(Repartition, KeepsToWhatWorkersHold) {
  Random random(23);
  planning::Problem types = random_problem(random, 6, 1);
  for (planning::LayerSize& layer : types.layers) layer.parameter_bytes = 1e6;
  types.types[0].memory_bytes = 4 * 3e6;  // of four layers, with gradients and a value of optimizer state
  const planning::Problem workers = problem_of_workers(types, {{0, 1}, {0, 10}});
  const auto running = make_placement(workers, even_plan(workers, 2), {0, 1});
  ASSERT_TRUE(running);
  const auto found = repartition(workers, *running, {});
  ASSERT_TRUE(found);
  ASSERT_EQ(found->plan.stages.size(), 2U) << "one worker cannot hold all layers";
  for (const planning::Stage& stage : found->plan.stages) EXPECT_LE(stage.last_layer - stage.first_layer + 1, 4);
}

// Workers of equal speeds and unequal memory: the first layer fits on two of the three, wherever they stand in the
// list.
TEST(Repartition, OrderMattersToNobody) {
  std::vector<double> seconds;
  for (const int small : {0, 1, 2}) {
    planning::Problem types;
    types.model = "two layers";
    types.cost_model = planning::CostModel::kPipeline;
    types.types = {{.name = "device", .count = 3}};
    types.layers = {{.name = "large", .parameter_bytes = 1e9}, {.name = "long"}};
    types.table = {{{0, 0.3e-3}, {0, 0.7e-3}}, {{0, 0.6e-3}, {0, 1.4e-3}}};
    types.cut_bytes = {0, 1, 0};
    types.links = {{1e12, 0}};
    types.batch = 64;
    types.micro_batches = 16;
    planning::Problem workers = problem_of_workers(types, {{0, 1}, {0, 1}, {0, 1}});
    for (int worker = 0; worker < 3; ++worker) {
      workers.types[static_cast<std::size_t>(worker)].memory_bytes = worker == small ? 2e9 : 20e9;
    }
    planning::Plan plan = even_plan(workers, 2);
    const int large = small == 0 ? 1 : 0;
    plan.stages[0].replicas = {{fmt::format("worker-{}", large), 1, 1}};
    plan.stages[1].replicas = {{fmt::format("worker-{}", small), 1, 0.5},
                               {fmt::format("worker-{}", 3 - small - large), 1, 0.5}};
    plan.stages[1].gradient_sync = planning::GradientSync::kRing;
    const auto running = make_placement(workers, plan, {0, 1, 2});
    ASSERT_TRUE(running) << running.error().message;
    const auto found = repartition(workers, *running, {});
    ASSERT_TRUE(found) << found.error().message;
    seconds.push_back(found->step_seconds);
  }
  EXPECT_NEAR(seconds[1], seconds[0], 1e-9 * seconds[0]);
  EXPECT_NEAR(seconds[2], seconds[0], 1e-9 * seconds[0]);
}

// The running plan is valued as it is: its workers wherever they are, its stages recomputing or not.
TEST(Repartition, ValuesTheRunningPlanAsItIs) {
  Random random(24);
  const planning::Problem types = random_problem(random, 6, 1);
  const planning::Problem workers = problem_of_workers(types, {{0, 1}, {0, 4}});
  planning::Plan plan = even_plan(workers, 2);
  const auto step = [&](const std::vector<int>& places) {
    planning::Plan named = plan;
    for (std::size_t s = 0; s < 2; ++s) named.stages[s].replicas[0].type = fmt::format("worker-{}", places[s]);
    const auto timeline = planning::simulate(workers, named);
    const auto placement = make_placement(workers, plan, places);
    EXPECT_TRUE(timeline && placement);
    EXPECT_NEAR(placement->step_seconds, timeline->step_seconds, 1e-12);
    EXPECT_EQ(placement->plan.stages[0].replicas[0].type, named.stages[0].replicas[0].type);
    return placement->step_seconds;
  };
  const double in_order = step({0, 1}), reversed = step({1, 0});
  EXPECT_NE(in_order, reversed);
  plan.stages[1].recompute = true;
  EXPECT_GT(step({0, 1}), in_order);
}

// Two workers that compute alike, and pull and push a sample's rows of an embedding in 0.1 ms each way, or in 0.6 ms.
// For all to finish together: 0.1 + 0.2 + 2 * 0.1 ms a sample against 0.1 + 0.2 + 2 * 0.6, that is 3 samples to 1.
TEST(Repartition, SharesFollowWhatRowsOfEmbeddingsTake) {
  planning::Problem types;
  types.model = "embedding";
  types.cost_model = planning::CostModel::kPipeline;
  types.types = {{.name = "near", .bytes_per_second = 1.2e6}, {.name = "far", .bytes_per_second = 2e5}};
  types.layers = {{.name = "table", .sparse_bytes = 120}};
  types.table = {{{0, 1e-4}, {0, 2e-4}}, {{0, 1e-4}, {0, 2e-4}}};
  types.cut_bytes = {0, 0};
  types.links = {{1e12, 0}, {1e12, 0}, {1e12, 0}, {1e12, 0}};
  types.batch = 64;
  types.micro_batches = 4;
  const planning::Problem workers = problem_of_workers(types, {{0, 1}, {1, 1}});
  planning::Plan plan = even_plan(workers, 1);
  plan.stages[0].gradient_sync = planning::GradientSync::kRing;
  plan.stages[0].replicas = {{"worker-0", 1, 0.5}, {"worker-1", 1, 0.5}};
  const auto placement = make_placement(workers, plan, {0, 1});
  ASSERT_TRUE(placement) << placement.error().message;
  EXPECT_NEAR(placement->plan.stages[0].replicas[0].share, 0.75, 1e-9);
  EXPECT_NEAR(placement->step_seconds, 4 * 12 * 0.5e-3, 1e-9);

  plan.stages[0].recompute = true;  // which computes forward once more, but pulls no rows
  const auto recomputing = make_placement(workers, plan, {0, 1});
  ASSERT_TRUE(recomputing) << recomputing.error().message;
  EXPECT_NEAR(recomputing->plan.stages[0].replicas[0].share, 1.6 / (0.6 + 1.6), 1e-9);
}

// A worker whose every start takes longer than all the others' work gets next to nothing, and the others all of it.
TEST(Repartition, ValuesAStageOneOfWhoseWorkersHadBetterRest) {
  Random random(25);
  const planning::Problem types = random_problem(random, 4, 1);
  const planning::Problem workers = problem_of_workers(types, {{0, 1}, {0, 1}, {0, 1000}});
  planning::Plan plan = even_plan(workers, 1);
  plan.stages[0].gradient_sync = planning::GradientSync::kRing;
  plan.stages[0].replicas = {{"worker-0", 1, 0.3}, {"worker-1", 1, 0.3}, {"worker-2", 1, 0.4}};
  const auto placement = make_placement(workers, plan, {0, 1, 2});
  ASSERT_TRUE(placement) << placement.error().message;
  EXPECT_LT(placement->plan.stages[0].replicas[2].share, 1e-3);
}

}  // namespace
}  // namespace motley::planning
