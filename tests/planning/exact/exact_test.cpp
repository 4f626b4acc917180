// The exact planner against brute force, and its promises where it is stopped or cannot succeed.
#include <gtest/gtest.h>

#include "motley/planning/exact/exact.h"
#include "tests/planning/search/exact_instances.h"

namespace motley::planning {
namespace {

TEST(Exact, EqualsBruteForceOnRandomInstances) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    expect_equal_to_brute_force(random_instance(seed), tally);
  }
  EXPECT_EQ(tally.instances, 150);
  EXPECT_GT(tally.infeasible, 0);
  EXPECT_GT(tally.of_several_stages, 50);
}

TEST(Exact, EqualsBruteForceWhereRoundTripsSetTheRate) {
  Tally tally;
  for (std::uint64_t seed = 1700; seed < 1900; ++seed) {
    expect_equal_to_brute_force(instance_of_slow_links(seed), tally);
  }
  EXPECT_GT(tally.of_runs, 5);
}

// A clock that is later every time it is read, so that a search ends in the midst of whatever it does.
class HastyClock final : public Clock {
 public:
  double now() const override { return now_ += 1; }
  void sleep_until(double) override {}

 private:
  mutable double now_ = 0;
};

TEST(Exact, ProvesNothingFalseWhenTheTimeIsOver) {
  int unproved = 0;
  int proved = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    RandomProblemOptions options{.layers = 16, .types = 2, .cost_model = planning::CostModel::kPipeline};
    options.min_count = options.max_count = 4;
    options.links = true;
    planning::Problem problem = random_problem(options, seed);
    equalise(problem);
    const Request unlimited{
        .problem = problem, .objective = {.criterion = planning::Criterion::kMinStepTime}, .seconds = 1e6};
    const auto optimum = exact_pipeline(unlimited);
    ASSERT_TRUE(optimum && optimum->proved);
    const double best = compute_value(*optimum, planning::Criterion::kMinStepTime);
    for (double seconds = 1; seconds < 4000; seconds *= 1.5) {
      HastyClock clock;
      const Request limited{.problem = problem,
                            .objective = {.criterion = planning::Criterion::kMinStepTime},
                            .seconds = seconds,
                            .clock = clock};
      const auto answer = exact_pipeline(limited);
      ASSERT_TRUE(answer);
      EXPECT_LE(answer->bound, best * (1 + 1e-9));
      EXPECT_GE(compute_value(*answer, planning::Criterion::kMinStepTime), best * (1 - 1e-9));
      if (answer->proved) {
        EXPECT_NEAR(compute_value(*answer, planning::Criterion::kMinStepTime), best, 1e-9 * best);
      }
      (answer->proved ? proved : unproved) += 1;
    }
  }
  EXPECT_GT(proved, 0);
  EXPECT_GT(unproved, 0);
}

// Too large for brute force: many random plans, and the best of one stage, are never better.
TEST(Exact, IsNeverBeatenOnLargerPipelines) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    RandomProblemOptions options{.layers = 14, .types = 3, .cost_model = planning::CostModel::kPipeline};
    options.min_count = options.max_count = 3;
    options.links = seed % 2 == 0;
    options.memory = seed % 3 == 0;
    options.allow_recompute = true;
    options.updates = seed % 4 == 1;
    options.schedule =
        seed % 4 < 2 ? planning::PipelineSchedule::kGPipe : planning::PipelineSchedule::kOneForwardOneBackward;
    planning::Problem problem = random_problem(options, seed);
    equalise(problem);
    for (const planning::Criterion criterion : {planning::Criterion::kMinCost, planning::Criterion::kMinStepTime}) {
      const planning::Objective objective{.criterion = criterion};
      const Request request{.problem = problem, .objective = objective, .seconds = 1e6};
      const auto answer = exact_pipeline(request);
      ASSERT_TRUE(answer);
      EXPECT_TRUE(answer->proved);
      const double best = compute_value(*answer, criterion);
      for (std::uint64_t i = 0; i < 2000; ++i) {
        const auto other = planning::evaluate(problem, random_candidate(problem, mix({seed, i})), objective);
        EXPECT_GE(planning::value(other, criterion), best * (1 - 1e-9));
      }
    }
  }
}

TEST(Exact, PlansAHundredLayersOnAThousandDevices) {
  Problem problem = random_problem({.layers = 100, .types = 8, .cost_model = CostModel::kPipeline, .links = true}, 4);
  double kinds = 0;
  for (int type = 0; type < problem.type_count(); ++type) {
    problem.types[static_cast<std::size_t>(type)].count = 125;
    kinds += static_cast<double>(problem.max_replicas(type));
  }
  ASSERT_EQ(kinds, 1000);
  const auto answer =
      plan_exact({.problem = problem, .objective = {.criterion = Criterion::kMaxThroughput}, .seconds = 1});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_TRUE(answer->best);
}

TEST(Exact, SaysThatNothingIsFeasible) {
  RandomProblemOptions options{.layers = 12, .types = 2, .cost_model = planning::CostModel::kPipeline};
  const planning::Problem problem = random_problem(options, 1);
  const Request request{.problem = problem, .objective = {.min_throughput = 1e15}};
  const auto answer = exact_pipeline(request);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->best);
  EXPECT_TRUE(answer->proved);
}

TEST(BruteForce, RefusesWhatItCannotEnumerate) {
  RandomProblemOptions options{.layers = 20, .types = 4};
  options.min_count = options.max_count = 10;
  const planning::Problem problem = random_problem(options, 1);
  const auto answer = plan_brute_force({.problem = problem, .objective = {}});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidInput);
  EXPECT_NE(answer.error().message.find("20 layers on 4 device types have more than 50000000 candidates"),
            std::string::npos)
      << answer.error().message;
}

// Two layers, one type of two devices: one stage of either, one stage of both, or a stage of one each; each stage with
// or without recomputation makes 2 + 2 + 4.
TEST(BruteForce, EvaluatesEveryCandidateOnce) {
  RandomProblemOptions options{.layers = 2, .types = 1, .cost_model = planning::CostModel::kPipeline};
  options.min_count = options.max_count = 2;
  options.allow_recompute = true;
  const planning::Problem problem = random_problem(options, 1);
  const auto answer = plan_brute_force({.problem = problem, .objective = {}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->evaluations, 8);
}

}  // namespace
}  // namespace motley::planning
