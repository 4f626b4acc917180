// The exact planner under kHeterps against an enumeration of all plans, and against what must hold of any optimum:
// more devices are never worse, a higher minimum throughput is never cheaper, nothing beats it, and its bound is below
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "motley/base/random.h"
#include "motley/planning/cost/provisioning.h"
#include "motley/planning/exact/exact.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

// Every choice of stages, types and counts, by evaluate() alone.
class Enumeration {
 public:
  Enumeration(const planning::Problem& problem, const planning::Objective& objective)
      : problem_(problem), objective_(objective) {
    for (const planning::Type& type : problem.types) {
      left_.push_back(type.count);
    }
    extend(0);
  }
  double best() const { return best_; }

 private:
  void extend(int first) {
    if (first == problem_.layer_count()) {
      best_ =
          std::min(best_, planning::value(planning::evaluate(problem_, candidate_, objective_), objective_.criterion));
      return;
    }
    for (int type = 0; type < problem_.type_count(); ++type) {
      std::int64_t& left = left_[static_cast<std::size_t>(type)];
      if (!candidate_.empty() && candidate_.back().type == type) {
        continue;
      }
      for (int last = first; last < problem_.layer_count(); ++last) {
        const std::int64_t most = left;
        for (std::int64_t replicas = 1; replicas <= most; ++replicas) {
          candidate_.push_back({.first = first, .last = last, .type = type, .replicas = replicas});
          left -= replicas;
          extend(last + 1);
          left += replicas;
          candidate_.pop_back();
        }
      }
    }
  }

  const planning::Problem& problem_;
  const planning::Objective& objective_;
  std::vector<std::int64_t> left_;
  planning::Candidate candidate_;
  double best_ = kInfinity;
};

struct Instance {
  planning::Problem problem;
  planning::Objective objective;
};

// Layers, types, counts, links, fractions, goal, limits all vary with the seed.
Instance instance(std::uint64_t seed, int max_layers, int max_types, std::int64_t max_count) {
  Random random(mix({seed, 0x74657374}));
  RandomProblemOptions options;
  options.layers = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(max_layers)));
  options.types = 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(max_types)));
  options.min_count = static_cast<std::int64_t>(random.below(2));
  options.max_count = 1 + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(max_count)));
  options.links = random.below(2) == 0;
  options.fractions = random.below(3) > 0;
  planning::Problem problem = random_problem(options, seed);
  RandomObjectiveOptions wanted;
  wanted.criterion = static_cast<planning::Criterion>(random.below(3));
  wanted.min_throughput = random.below(2) == 0;
  wanted.max_cost = random.below(3) == 0;
  wanted.max_hourly_cost = random.below(3) == 0;
  planning::Objective objective = random_objective(problem, wanted, seed);
  return {std::move(problem), objective};
}

Answer solve(const planning::Problem& problem, const planning::Objective& objective) {
  Result<Answer> answer = exact_heterps({.problem = problem, .objective = objective});
  EXPECT_TRUE(answer.has_value());
  return *answer;
}

// Infinity where there is no plan.
double optimum(const planning::Problem& problem, const planning::Objective& objective) {
  const Answer answer = solve(problem, objective);
  EXPECT_TRUE(answer.proved);
  EXPECT_EQ(answer.best.has_value(), answer.evaluation.feasible);
  return planning::value(answer.evaluation, objective.criterion);
}

TEST(ExactHeterps, FindsWhatEnumerationFinds) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 800; ++seed) {
    const auto [problem, objective] = instance(seed, 5, 3, 4);
    const double expected = Enumeration(problem, objective).best();
    const Answer answer = solve(problem, objective);
    ASSERT_TRUE(answer.proved) << "seed " << seed;
    if (std::isinf(expected)) {
      ASSERT_FALSE(answer.best) << "seed " << seed;
      continue;
    }
    ++feasible;
    ASSERT_TRUE(answer.best) << "seed " << seed;
    const planning::Evaluation evaluation = planning::evaluate(problem, *answer.best, objective);
    ASSERT_THAT(planning::value(evaluation, objective.criterion), DoubleNear(expected, 1e-9 * expected))
        << "seed " << seed;
    ASSERT_THAT(answer.bound, DoubleNear(expected, 1e-9 * expected)) << "seed " << seed;
    for (std::size_t s = 1; s < answer.best->size(); ++s) {
      ASSERT_NE((*answer.best)[s - 1].type, (*answer.best)[s].type) << "seed " << seed;
    }
  }
  EXPECT_GT(feasible, 300);
}

TEST(ExactHeterps, IsNeverWorseWithMoreDevices) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    auto [problem, objective] = instance(seed, 10, 4, 6);
    const double before = optimum(problem, objective);
    ++problem.types[seed % problem.types.size()].count;
    EXPECT_LE(optimum(problem, objective), before * (1 + 1e-9)) << "seed " << seed;
  }
}

TEST(ExactHeterps, IsNeverCheaperWithAHigherFloor) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const planning::Problem problem = random_problem({.layers = 12, .types = 4, .max_count = 12, .links = true}, seed);
    const double most = 1 / optimum(problem, {.criterion = planning::Criterion::kMaxThroughput});
    double before = 0;
    for (double share : {0.0, 0.3, 0.6, 0.8, 0.9, 1.0}) {
      const double cost = optimum(problem, {.min_throughput = share * most});
      EXPECT_GE(cost, before * (1 - 1e-9)) << "seed " << seed << ", floor " << share;
      before = cost;
    }
    EXPECT_FALSE(std::isinf(before)) << "seed " << seed;
    EXPECT_TRUE(std::isinf(optimum(problem, {.min_throughput = 1.0001 * most}))) << "seed " << seed;
  }
}

TEST(ExactHeterps, GoalsAgreeWithEachOther) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const planning::Problem problem = random_problem({.layers = 10, .types = 4, .max_count = 8}, seed);
    const double cost = optimum(problem, {});
    // As much throughput as the lowest cost buys, which is attained and no more than that cost.
    const planning::Objective within{.criterion = planning::Criterion::kMaxThroughput, .max_cost = cost};
    const double seconds = optimum(problem, within);
    ASSERT_FALSE(std::isinf(seconds)) << "seed " << seed;
    const double again = optimum(problem, {.min_throughput = 1 / seconds});
    EXPECT_THAT(again, DoubleNear(cost, 1e-8 * cost)) << "seed " << seed;
    EXPECT_TRUE(
        std::isinf(optimum(problem, {.criterion = planning::Criterion::kMaxThroughput, .max_cost = 0.999 * cost})));
    planning::Objective step = within;
    step.criterion = planning::Criterion::kMinStepTime;
    const auto batch = static_cast<double>(problem.batch);
    EXPECT_THAT(optimum(problem, step), DoubleNear(batch * seconds, 1e-9 * batch * seconds)) << "seed " << seed;
  }
}

TEST(ExactHeterps, IsNeverWorseThanRandomPlansOfLargerProblems) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const bool links = seed % 2 == 0;
    const planning::Problem problem =
        random_problem({.layers = 20, .types = 6, .min_count = 2, .max_count = 10, .links = links}, seed);
    RandomObjectiveOptions wanted{.criterion = static_cast<planning::Criterion>(seed % 3), .min_throughput = true};
    wanted.max_hourly_cost = seed % 4 == 0;
    const planning::Objective objective = random_objective(problem, wanted, seed);
    const Answer answer = *exact_heterps({.problem = problem, .objective = objective, .seconds = 0.2});
    const double value = planning::value(answer.evaluation, objective.criterion);
    EXPECT_LE(answer.bound, value * (1 + 1e-9)) << "seed " << seed;
    Random random(seed);
    for (int i = 0; i < 300; ++i) {
      std::vector<int> types(problem.layers.size());
      for (std::size_t l = 0; l < types.size(); ++l) {
        types[l] = l > 0 && random.below(4) > 0 ? types[l - 1] : static_cast<int>(random.below(problem.types.size()));
      }
      const auto candidate = planning::provision(problem, planning::list_stages(problem, types), objective);
      if (candidate) {
        const double other = planning::value(planning::evaluate(problem, *candidate, objective), objective.criterion);
        EXPECT_LE(answer.bound, other * (1 + 1e-9)) << "seed " << seed;
        EXPECT_LE(value, other * (1 + 1e-9)) << "seed " << seed;
      }
    }
  }
}

TEST(ExactHeterps, SaysWhenNothingIsWithinTheLimits) {
  planning::Problem problem = random_problem({.layers = 6, .types = 3}, 1);
  double cheapest = kInfinity;
  for (const planning::Type& type : problem.types) {
    cheapest = std::min(cheapest, type.price_per_hour);
  }
  EXPECT_TRUE(std::isinf(optimum(problem, {.max_hourly_cost = 0.99 * cheapest})));
  EXPECT_FALSE(std::isinf(optimum(problem, {.max_hourly_cost = 1.01 * cheapest})));
  for (planning::Type& type : problem.types) {
    type.count = 0;
  }
  for (planning::Criterion criterion :
       {planning::Criterion::kMinCost, planning::Criterion::kMaxThroughput, planning::Criterion::kMinStepTime}) {
    EXPECT_TRUE(std::isinf(optimum(problem, {.criterion = criterion})));
  }
}

TEST(ExactHeterps, TakesFreeDevices) {
  planning::Problem problem = random_problem({.layers = 6, .types = 3}, 2);
  for (planning::Type& type : problem.types) {
    type.price_per_hour = 0;
  }
  EXPECT_EQ(optimum(problem, {}), 0);
}

// A clock that moves by a second whenever it is read, so that a search ends after so many looks at it.
class CountingClock final : public Clock {
 public:
  double now() const override { return now_++; }
  void sleep_until(double time) override { now_ = time; }

 private:
  mutable double now_ = 0;
};

TEST(ExactHeterps, StopsWithABoundWheneverItsTimeIsOver) {
  int between = 0;  // stopped with a plan and a gap
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const planning::Problem problem =
        random_problem({.layers = 16, .types = 5, .min_count = 2, .max_count = 8, .links = true}, seed);
    planning::Objective objective{.criterion = planning::Criterion::kMaxThroughput};
    objective.min_throughput = 0.8 / optimum(problem, objective);
    objective.criterion = static_cast<planning::Criterion>(seed % 3);
    const double least = optimum(problem, objective);
    for (double looks = 1; looks < 3000; looks *= 1.5) {
      CountingClock clock;
      const Answer answer =
          *exact_heterps({.problem = problem, .objective = objective, .seconds = looks, .clock = clock});
      EXPECT_LE(answer.bound, least * (1 + 1e-9)) << "seed " << seed << ", looks " << looks;
      EXPECT_GE(planning::value(answer.evaluation, objective.criterion), least * (1 - 1e-9));
      EXPECT_TRUE(answer.proved || answer.stopped);
      between += answer.best && answer.bound > 0 && !answer.proved ? 1 : 0;
    }
  }
  EXPECT_GT(between, 10);
}

TEST(ExactHeterps, StopsWhenAsked) {
  const planning::Problem problem = random_problem({.layers = 20, .types = 8}, 3);
  std::stop_source stop;
  stop.request_stop();
  const Answer answer = *exact_heterps({.problem = problem, .stop = stop.get_token()});
  EXPECT_TRUE(answer.stopped);
  EXPECT_FALSE(answer.proved);
  EXPECT_FALSE(answer.best);
}

TEST(ExactHeterps, AnswersTheSameTwice) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto [problem, objective] = instance(seed, 12, 5, 8);
    const Answer one = solve(problem, objective);
    const Answer two = solve(problem, objective);
    EXPECT_EQ(one.best, two.best) << "seed " << seed;
    EXPECT_EQ(one.bound, two.bound) << "seed " << seed;
    EXPECT_EQ(one.evaluations, two.evaluations) << "seed " << seed;
  }
}

TEST(Exact, RefusesARewardThatIsNotTheCostModel) {
  const planning::Problem problem = random_problem({}, 1);
  Request request{.problem = problem};
  request.evaluator = [&](const planning::Candidate& candidate) { return planning::evaluate(problem, candidate, {}); };
  const auto answer = plan_exact(request);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(answer.error().message, HasSubstr("accepted"));
}

TEST(Exact, RefusesMoreLayersThanItBearsUnderHeterps) {
  const planning::Problem problem = random_problem({.layers = 2001, .types = 1}, 1);
  EXPECT_EQ(max_exact_layers(problem), 2000);
  const auto answer = plan_exact({.problem = problem, .objective = {}, .seconds = 0.1});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(answer.error().message, HasSubstr("2001 layers under the cost model heterps; accepted: up to 2000"));
}

TEST(RandomProblem, IsValidAndFollowsItsSeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RandomProblemOptions options{.layers = 1 + static_cast<int>(seed), .types = 1 + static_cast<int>(seed % 7)};
    options.cost_model = seed % 2 == 0 ? planning::CostModel::kHeterps : planning::CostModel::kPipeline;
    options.memory = seed % 3 == 0;
    options.links = seed % 5 == 0;
    const planning::Problem problem = random_problem(options, seed);
    EXPECT_TRUE(planning::validate(problem)) << "seed " << seed;
    EXPECT_EQ(random_problem(options, seed).table.size(), problem.table.size());
    EXPECT_EQ(random_problem(options, seed).layers.back().flops, problem.layers.back().flops);
    EXPECT_NE(random_problem(options, seed + 1).layers.back().flops, problem.layers.back().flops);
    const planning::Candidate candidate = random_candidate(problem, seed);
    EXPECT_EQ(candidate, random_candidate(problem, seed));
    EXPECT_GT(planning::evaluate(problem, candidate, {}).throughput, 0);
  }
}

}  // namespace
}  // namespace motley::planning
