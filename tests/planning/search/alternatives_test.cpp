// Alternatives are plans of their own that come near the best one, and how often one of them is better follows from how
// the measured times vary.
#include "motley/planning/search/alternatives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/planning/methods.h"
#include "motley/planning/search/found_plan.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

using testing::HasSubstr;

TEST(Alternatives, AreNearWorseAndOthers) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const CostModel model = seed % 2 == 0 ? CostModel::kPipeline : CostModel::kHeterps;
    const Problem problem =
        random_problem({.layers = 6, .types = 2, .cost_model = model, .max_count = 6, .links = true}, seed);
    const Objective objective{.criterion = seed % 3 == 0 ? Criterion::kMinCost : Criterion::kMaxThroughput};
    const auto answer = plan_exact({.problem = problem, .objective = objective});
    ASSERT_TRUE(answer && answer->best && answer->proved) << seed;
    const Plan best = to_plan(problem, *answer->best, answer->evaluation, objective, "");
    double last = 0;
    for (const Alternative& one : find_alternatives(problem, objective, *answer->best, answer->evaluation, {})) {
      ++found;
      EXPECT_NE(one.plan.stages, best.stages);
      EXPECT_FALSE(one.reason.empty());
      const auto seen = evaluate_plan(problem, one.plan, objective);
      ASSERT_TRUE(seen) << seen.error().message;
      EXPECT_TRUE(seen->feasible) << seen->violation;
      const double worse = value(*seen, objective.criterion) / value(answer->evaluation, objective.criterion) - 1;
      EXPECT_NEAR(worse, one.worse, 1e-9);
      EXPECT_GE(worse, -1e-9) << "the best is proved";
      EXPECT_LE(worse, kNear);
      EXPECT_GE(one.worse, last);
      last = one.worse;
    }
  }
  EXPECT_GT(found, 20);
}

TEST(Alternatives, SayWhyTheyLost) {
  Problem problem;
  problem.model = "net";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "cpu", .price_per_hour = 1, .count = 8}};
  problem.layers = {{.name = "a"}, {.name = "b"}};
  problem.table = {{{0, 0.001}, {0, 0.002}}, {{0, 0.001}, {0, 0.0021}}};
  problem.cut_bytes = {0, 0, 0};
  problem.links = {{}};
  problem.total_samples = 3600;
  problem.batch = 64;
  problem.micro_batches = 4;
  const Objective cheapest{.criterion = Criterion::kMinCost, .min_throughput = 300};
  const Candidate best = {{0, 1, 0, 2, false}};
  const Evaluation evaluation = evaluate(problem, best, cheapest);
  const auto all = find_alternatives(problem, cheapest, best, evaluation, {});
  ASSERT_FALSE(all.empty());
  EXPECT_THAT(all.front().reason,
              HasSubstr("its devices cost 3 an hour for 492 samples/s, those of the plan 2 for 328"));
}

// One layer on one device: a step is its time, which varies as the device does.
TEST(Uncertainty, IsThatOfTheTimes) {
  Problem problem;
  problem.model = "net";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "cpu", .count = 2}};
  problem.layers = {{.name = "a"}};
  problem.table = {{{0, 0.001}, {0, 0.002}}};
  problem.cut_bytes = {0, 0};
  problem.links = {{}};
  problem.batch = 8;
  const Objective objective{.criterion = Criterion::kMinStepTime};
  const Candidate one = {{0, 0, 0, 1, false}}, two = {{0, 0, 0, 2, false}};
  const auto make_plan = [&](const Candidate& candidate) {
    return to_plan(problem, candidate, evaluate(problem, candidate, objective), objective, "");
  };
  EXPECT_FALSE(find_uncertainty(problem, objective, make_plan(one), {})) << "nothing is known of how times vary";

  problem.types[0].noise = 0.1;
  const std::vector<Alternative> other = {{make_plan(two), {}, 0, ""}};
  const auto sure = find_uncertainty(problem, objective, make_plan(one), other);
  ASSERT_TRUE(sure);
  // 9 of 10 values of a normal distribution are within 1.645 deviations.
  EXPECT_NEAR(std::log(sure->low / 0.024), -0.1645, 0.04);
  EXPECT_NEAR(std::log(sure->high / 0.024), 0.1645, 0.04);
  EXPECT_NEAR(sure->better[0], 1, 1e-9) << "two devices are faster, however fast each is";
  EXPECT_EQ(find_uncertainty(problem, objective, make_plan(two), {{make_plan(one), {}, 0, ""}})->better[0], 0);
}

// Two types that are as fast, whose times vary by themselves: either may be the faster one.
TEST(Uncertainty, SaysHowOftenAnAlternativeIsBetter) {
  Problem problem;
  problem.model = "net";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "one", .noise = 0.05}, {.name = "other", .noise = 0.05}};
  problem.layers = {{.name = "a"}};
  problem.table = {{{0, 0.001}, {0, 0.002}}, {{0, 0.001}, {0, 0.002}}};
  problem.cut_bytes = {0, 0};
  problem.links.assign(4, {});
  problem.batch = 8;
  const Objective objective{.criterion = Criterion::kMaxThroughput};
  const auto plan_on = [&](int type) {
    const Candidate candidate = {{0, 0, type, 1, false}};
    return to_plan(problem, candidate, evaluate(problem, candidate, objective), objective, "");
  };
  const auto even = find_uncertainty(problem, objective, plan_on(0), {{plan_on(1), {}, 0, ""}});
  ASSERT_TRUE(even);
  EXPECT_NEAR(even->better[0], 0.5, 0.15);
  for (Affine* part : {&problem.table[1].forward, &problem.table[1].backward}) part->per_sample *= 2;
  EXPECT_EQ(find_uncertainty(problem, objective, plan_on(0), {{plan_on(1), {}, 0, ""}})->better[0], 0);
}

TEST(Progress, IsToldInTheObjectivesTerms) {
  EXPECT_EQ(describe(Progress{}, Criterion::kMinCost), "no plan yet");
  EXPECT_EQ(describe(Progress{.best = 1.0 / 1420}, Criterion::kMaxThroughput), "best 1,420 samples/s, no bound yet");
  EXPECT_EQ(describe(Progress{.best = 0.0103, .bound = 0.01}, Criterion::kMinStepTime),
            "best 10.3 ms a step, at most 3.0 % from the optimum");
  EXPECT_EQ(describe(Progress{.best = 12, .bound = 12}, Criterion::kMinCost),
            "best cost 12, at most 0.0 % from the optimum");
}

// The loss, which is charged to the last layer, does not make that the longest one.
TEST(Bottleneck, IsNamedByItsLayersOwnTimes) {
  Problem problem;
  problem.model = "net";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "cpu"}};
  problem.layers = {{.name = "long"}, {.name = "output"}};
  problem.table = {{{0, 0.001}, {0, 0.002}}, {.forward = {0.1, 0.0001}, .backward = {0, 0.0001}, .overhead = {0.1, 0}}};
  problem.cut_bytes = {0, 0, 0};
  problem.links = {{}};
  problem.batch = 8;
  const Objective objective{.criterion = Criterion::kMaxThroughput};
  const Candidate candidate = {{0, 1, 0, 1, false}};
  const Evaluation evaluation = evaluate(problem, candidate, objective);
  EXPECT_EQ(longest_layer(problem, 0, 1, 0, 8), 0);
  EXPECT_EQ(describe_bottleneck(problem, to_plan(problem, candidate, evaluation, objective, ""), evaluation),
            "stage 0 is the bottleneck (it computes 126 ms a micro-batch); its longest layer is long, 24 ms for 8 "
            "samples on cpu; loss, loading and the framework take 100 ms besides its layers");
}

}  // namespace
}  // namespace motley::planning
