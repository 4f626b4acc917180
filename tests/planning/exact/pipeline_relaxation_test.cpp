// The relaxation of pipelines: no plan is charged less than the cheapest path of its class, and no bound is above what
// brute force finds.
#include "motley/planning/exact/pipeline_relaxation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/planning/search/exact_instances.h"

namespace motley::planning {
namespace {

Instance pipeline_instance(std::uint64_t seed) {
  for (std::uint64_t next = 1000 * seed;; ++next) {
    Instance instance = next % 2 == 0 ? random_instance(next) : instance_of_slow_links(next);
    if (instance.problem.cost_model == CostModel::kPipeline) return instance;
  }
}

// The longest stage or transfer, as classes count it.
double find_longest(const Problem& problem, const Evaluation& plan) {
  const double directions = problem.schedule == PipelineSchedule::kGPipe ? 2 : 1;
  double longest = 0;
  for (const StageCost& stage : plan.stages) {
    longest = std::max({longest, stage.forward_seconds + stage.backward_seconds, directions * stage.transfer_seconds});
  }
  return longest;
}

TEST(PipelinePaths, ChargeNoPlanOfTheirClassMoreThanItTakes) {
  int of_several_stages = 0;
  int whole = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Instance instance = pipeline_instance(seed);
    SCOPED_TRACE(instance.words);
    const Problem& problem = instance.problem;
    const PipelineStages stages(problem);
    PipelinePaths paths(stages);
    Random random(mix({seed, 1}));
    for (std::uint64_t i = 0; i < 60; ++i) {
      Candidate plan = random_candidate(problem, mix({seed, i}));
      for (StageChoice& stage : plan) stage.recompute = false;  // where it must, a path takes less: of another class
      const Evaluation evaluation = evaluate(problem, plan, {});
      if (!evaluation.feasible) continue;
      const double longest = find_longest(problem, evaluation);
      const auto count = static_cast<int>(plan.size());
      PathCharges charges{.second = random.uniform() / evaluation.step_seconds,
                          .price = random.uniform() / (1e-9 + evaluation.hourly_cost),
                          .low = longest * (1 - 0.2 * random.uniform() - 1e-9),
                          .high = longest * (1 + 0.2 * random.uniform())};
      double taken = charges.second * evaluation.step_seconds + charges.price * evaluation.hourly_cost;
      for (std::size_t type = 0; type < problem.types.size(); ++type) {
        charges.device.push_back(0.1 * random.uniform());
        taken += charges.device[type] * static_cast<double>(evaluation.used[type]);
      }
      const auto of_charging = [&](bool returns, bool longest_ends) {
        charges.returns = returns;
        charges.longest_ends = longest_ends;
        const double least = paths.shortest(charges);
        EXPECT_LE(least, taken * (1 + 1e-9))
            << count << " stages; from " << charges.min_stages << " to " << charges.max_stages
            << (returns ? ", returns" : "") << (longest_ends ? ", the longest ends" : "");
        const Candidate path = paths.path();
        EXPECT_GE(path.size(), static_cast<std::size_t>(charges.min_stages));
        EXPECT_LE(path.size(),
                  static_cast<std::size_t>(charges.max_stages > 0 ? charges.max_stages : problem.layer_count()));
        int next = 0;
        for (const StageChoice& stage : path) {
          EXPECT_EQ(stage.first, next);
          EXPECT_LE(stage.first, stage.last);
          next = stage.last + 1;
        }
        EXPECT_EQ(next, problem.layer_count());
      };
      const auto of_class = [&](int min_stages, int max_stages, bool roughly) {
        charges.min_stages = min_stages;
        charges.max_stages = max_stages;
        charges.roughly = roughly;
        of_charging(false, false);
        if (roughly) return;
        of_charging(true, false);
        of_charging(false, true);
        of_charging(true, true);
      };
      of_class(1, 0, true);
      of_class(1, 0, false);
      of_class(1, count, false);
      of_class(count, count, false);
      of_class(count, 0, false);
      of_several_stages += count > 1 ? 1 : 0;
      whole += count == 1 ? 1 : 0;
    }
  }
  EXPECT_GT(of_several_stages, 500);
  EXPECT_GT(whole, 20);
}

// One device sends to several, each of which takes long for what it gets: the more of them, the less a transfer takes.
TEST(PipelinePaths, ChargeATransferByTheDevicesOfBothSides) {
  Problem problem =
      random_problem({.layers = 2, .types = 2, .cost_model = CostModel::kPipeline, .min_count = 4, .max_count = 4}, 1);
  problem.batch = problem.micro_batches = 4;
  problem.batch *= 16;
  problem.cut_bytes = {0, 1.0 / 16, 0};
  for (const bool is_sender_slow : {false, true}) {
    for (std::size_t type = 0; type < 2; ++type) {
      const bool is_slow = (type == 0) == is_sender_slow;
      problem.types[type].count = is_slow ? 4 : 1;
      problem.types[type].bytes_per_second = is_slow ? 0.5 : 100;
      problem.layers[type].parameter_bytes = 0;
      problem.layers[type].sparse_bytes = 0;
      for (std::size_t layer = 0; layer < 2; ++layer) {
        const double seconds = layer != type ? 1e3 : is_slow ? 0.4 : 0.1;
        problem.table[2 * layer + type] = {{0, seconds / 16}, {0, seconds / 16}};
      }
    }
    problem.links.assign(4, {100, 0});
    const Candidate plan = {{0, 0, 0, problem.types[0].count}, {1, 1, 1, problem.types[1].count}};
    const Evaluation evaluation = evaluate(problem, plan, {});
    EXPECT_NEAR(evaluation.stages[0].transfer_seconds, 0.5, 1e-12);
    const PipelineStages stages(problem);
    PipelinePaths paths(stages);
    for (const bool roughly : {false, true}) {
      const double least = paths.shortest({.second = 1, .device = {0, 0}, .roughly = roughly});
      EXPECT_LE(least, evaluation.step_seconds * (1 + 1e-9));
      EXPECT_EQ(paths.path(), plan);
    }
    const double longest = find_longest(problem, evaluation);  // the transfer
    EXPECT_EQ(longest, evaluation.stages[0].transfer_seconds);
    EXPECT_LE(paths.shortest({.second = 1, .device = {0, 0}, .low = 0.9 * longest, .high = 1.1 * longest}),
              evaluation.step_seconds * (1 + 1e-9));
  }
}

// A stage that makes its activations once more holds its input, and so may fit with the layer before and not without.
TEST(PipelineRelaxation, KnowsThatALongerStageMayFitWhereAShorterDoesNot) {
  Problem problem =
      random_problem({.layers = 3, .types = 1, .cost_model = CostModel::kPipeline, .min_count = 2, .max_count = 2}, 1);
  problem.allow_recompute = true;
  problem.batch = problem.micro_batches = 4;  // of one sample: no stage has several devices
  const double memory = problem.types[0].memory_bytes = 1e9;
  const double activations[] = {0.1, 0.6, 0.5};
  for (std::size_t layer = 0; layer < 3; ++layer) {
    problem.layers[layer].parameter_bytes = 0;
    problem.layers[layer].activation_bytes = activations[layer] * memory;
  }
  problem.cut_bytes = {1, memory, 1, 0};
  const Request request{.problem = problem, .objective = {.criterion = Criterion::kMinStepTime}};
  const auto reference = plan_brute_force(request);
  ASSERT_TRUE(reference && reference->best);
  ASSERT_EQ(reference->best->front().last, 1);
  Search search(request);
  const PipelineStages stages(problem);
  const PlanValue plan_value = make_plan_value(problem, request.objective);
  PipelineRelaxation relaxation(request, stages, plan_value, search, std::numeric_limits<double>::infinity());
  int looks = 0;
  EXPECT_LE(relaxation.run([&] { return ++looks > 200; }),
            compute_value(*reference, Criterion::kMinStepTime) * (1 + 1e-9));
  EXPECT_LT(relaxation.best(), std::numeric_limits<double>::infinity());
}

TEST(PipelineRelaxation, BoundsWhatBruteForceFinds) {
  int proved = 0;
  int infeasible = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const Instance instance = pipeline_instance(seed + 100);
    SCOPED_TRACE(instance.words);
    const Request request{.problem = instance.problem, .objective = instance.objective, .seconds = 1e6};
    const auto reference = plan_brute_force(request);
    ASSERT_TRUE(reference) << reference.error().message;
    const double optimum = compute_value(*reference, instance.objective.criterion);
    Search search(request);
    const PipelineStages stages(instance.problem);
    const PlanValue plan_value = make_plan_value(instance.problem, instance.objective);
    PipelineRelaxation relaxation(request, stages, plan_value, search, std::numeric_limits<double>::infinity());
    int looks = 0;
    double bound = 0;
    for (const int end : {20, 200, 2000}) {  // where it is stopped, it goes on from
      bound = relaxation.run([&] { return ++looks > end; });
      EXPECT_LE(std::min(bound, relaxation.best()), optimum * (1 + 1e-9));
      EXPECT_GE(relaxation.best(), optimum * (1 - 1e-9));
    }
    infeasible += reference->best ? 0 : 1;
    proved += reference->best && bound >= optimum * (1 - 1e-9) ? 1 : 0;
  }
  EXPECT_GT(proved, 10);
  EXPECT_GT(infeasible, 0);
}

}  // namespace
}  // namespace motley::planning
