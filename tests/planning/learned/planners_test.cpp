// The learned planners as a whole: near the optimum of brute force, deterministic, stoppable, on both cost models.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "motley/planning/learned/learned.h"
#include "motley/planning/learned/policy_gradient.h"
#include "motley/planning/methods.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

double compute_value(const Answer& answer) {
  return answer.best ? planning::value(answer.evaluation, planning::Criterion::kMinCost)
                     : std::numeric_limits<double>::infinity();
}

// Few and small rounds, for what does not depend on their number.
const PolicyGradientOptions kQuick{.policies = 2, .rounds = 15, .tuning_rounds = 5, .samples = 16};

std::shared_ptr<Policy> lstm(const planning::Problem& problem) {
  return make_sequence_policy(problem, Recurrence::kLstm);
}
std::shared_ptr<Policy> elman(const planning::Problem& problem) {
  return make_sequence_policy(problem, Recurrence::kElman);
}

struct NamedMake {
  const char* name;
  std::shared_ptr<Policy> (*policy)(const planning::Problem&);
};
constexpr NamedMake kPolicies[] = {{"lstm", lstm}, {"elman", elman}, {"attention", make_attention_policy}};

TEST(LearnedPlanners, ComeNearTheOptimumOfSmallProblems) {
  const PolicyGradientOptions options{.policies = 3, .rounds = 150, .samples = 64};
  for (const auto cost_model : {planning::CostModel::kHeterps, planning::CostModel::kPipeline}) {
    for (const NamedMake& make : kPolicies) {
      int near = 0;
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        const planning::Problem problem =
            random_problem({.layers = 5, .types = 2, .cost_model = cost_model, .links = true}, seed);
        const auto optimum = plan_brute_force({.problem = problem});
        const auto answer = plan_by_policy_gradient({.problem = problem, .seed = seed}, make.policy, options);
        ASSERT_TRUE(optimum && answer);
        ASSERT_TRUE(answer->best.has_value());
        EXPECT_FALSE(answer->stopped);
        EXPECT_FALSE(answer->proved);
        EXPECT_GE(compute_value(*answer), compute_value(*optimum) * (1 - 1e-9));
        EXPECT_EQ(planning::evaluate(problem, *answer->best, {}).cost, answer->evaluation.cost);
        near += compute_value(*answer) <= 1.03 * compute_value(*optimum) ? 1 : 0;
      }
      EXPECT_GE(near, 3) << make.name << " under " << planning::to_string(cost_model);
    }
  }
}

// Nearly no plan meets the minimum throughput: rewards below feasibility must lead there.
TEST(LearnedPlanners, FindTheirWayToATightFloor) {
  const planning::Problem problem = random_problem({.layers = 8, .types = 2, .min_count = 4, .max_count = 8}, 3);
  const auto fastest =
      plan_brute_force({.problem = problem, .objective = {.criterion = planning::Criterion::kMaxThroughput}});
  ASSERT_TRUE(fastest && fastest->best);
  for (const auto& planner : learned_planners()) {
    const auto answer =
        planner.plan({.problem = problem, .objective = {.min_throughput = 0.999 * fastest->evaluation.throughput}});
    ASSERT_TRUE(answer);
    EXPECT_TRUE(answer->best.has_value()) << planner.name;
  }
}

TEST(LearnedPlanners, FindNothingWhereNothingIsPossible) {
  const planning::Problem problem = random_problem({.layers = 4, .types = 2}, 3);
  for (const auto& planner : learned_planners()) {
    const auto answer = planner.plan({.problem = problem, .objective = {.min_throughput = 1e15}});
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->best.has_value());
    EXPECT_FALSE(answer->proved);
  }
}

TEST(LearnedPlanners, AnswerTheSameForTheSameSeedWhateverTheThreads) {
  const planning::Problem problem = random_problem({.layers = 10, .types = 4, .max_count = 20}, 5);
  for (const MakePolicy& make : {MakePolicy(lstm), MakePolicy(make_attention_policy)}) {
    std::vector<Answer> answers;
    for (const int workers : {1, 1, 3}) {
      PolicyGradientOptions options = kQuick;
      options.workers = workers;
      torch::rand({answers.empty() ? 1 : 7});  // the process's own generator has no influence
      answers.push_back(*plan_by_policy_gradient({.problem = problem, .seed = 8}, make, options));
    }
    for (const Answer& answer : answers) {
      EXPECT_EQ(answer.best, answers[0].best);
      EXPECT_EQ(answer.evaluations, answers[0].evaluations);
    }
    EXPECT_NE(plan_by_policy_gradient({.problem = problem, .seed = 9}, make, kQuick)->evaluations,
              answers[0].evaluations);
  }
}

// Nothing is cheaper than what is free, and of that there is no logarithm.
TEST(LearnedPlanners, FindPlansThatCostNothing) {
  planning::Problem problem = random_problem({.layers = 4, .types = 2}, 3);
  problem.types[0].price_per_hour = 0;
  for (const NamedMake& make : kPolicies) {
    const auto answer = plan_by_policy_gradient({.problem = problem, .seed = 1}, make.policy, kQuick);
    ASSERT_TRUE(answer) << make.name << ": " << answer.error().message;
    ASSERT_TRUE(answer->best.has_value()) << make.name;
    EXPECT_EQ(answer->evaluation.cost, 0) << make.name;
  }
}

// An evaluator for which type 0 is dearer than the cost model says: the answer is the evaluator's, and no worse than
// what the same seed finds by the cost model alone.
TEST(LearnedPlanners, TuneOnTheEvaluator) {
  const planning::Problem problem = random_problem({.layers = 6, .types = 2, .max_count = 6}, 2);
  std::atomic<int> calls = 0;
  const auto evaluator = [&](const planning::Candidate& candidate) {
    ++calls;
    planning::Evaluation evaluation = planning::evaluate(problem, candidate, {});
    for (const planning::StageChoice& stage : candidate) {
      evaluation.cost *= stage.type == 0 ? 1.5 : 1;
    }
    return evaluation;
  };
  for (const auto& planner : learned_planners()) {
    const auto by_cost_model = planner.plan({.problem = problem});
    calls = 0;
    const auto answer = planner.plan({.problem = problem, .evaluator = evaluator});
    ASSERT_TRUE(answer && answer->best && by_cost_model && by_cost_model->best);
    EXPECT_GT(calls, 1) << planner.name;
    EXPECT_EQ(answer->evaluation.cost, evaluator(*answer->best).cost);
    EXPECT_LE(answer->evaluation.cost, evaluator(*by_cost_model->best).cost) << planner.name;
  }
}

// Rewards that are dear, as measured steps are: so many are taken and no more, one after the other, and what is learnt
// from them prefers plans that the cost model does not. Where a plan is turned down, the answer is another one.
TEST(LearnedPlanners, LearnFromFewRewardsWhatTheCostModelDoesNotKnow) {
  constexpr std::int64_t kMost = 40;
  const planning::Problem problem =
      random_problem({.layers = 4, .types = 2, .cost_model = planning::CostModel::kPipeline, .max_count = 4}, 2);
  const planning::Objective objective{.criterion = planning::Criterion::kMinStepTime};
  const auto exact = plan_exact({.problem = problem, .objective = objective});
  ASSERT_TRUE(exact && exact->best);
  // Where the best plan by the cost model begins, a plan really takes so long that all without that type are better.
  const int slow = exact->best->front().type;
  const auto is_slow = [&](const planning::Candidate& candidate) {
    return std::ranges::any_of(candidate, [&](const planning::StageChoice& stage) { return stage.type == slow; });
  };
  planning::Problem without = problem;
  without.types[static_cast<std::size_t>(slow)].count = 0;
  const auto other = plan_exact({.problem = without, .objective = objective});
  ASSERT_TRUE(other && other->best && !is_slow(*other->best));
  const double factor = 100 * other->evaluation.step_seconds / exact->evaluation.step_seconds;
  for (const auto& planner : learned_planners()) {
    std::vector<planning::Candidate> seen;
    const auto evaluator = [&](const planning::Candidate& candidate) {
      EXPECT_EQ(std::ranges::count(seen, candidate), 0) << "what is known is not asked for again";
      seen.push_back(candidate);
      planning::Evaluation evaluation = planning::evaluate(problem, candidate, objective);
      evaluation.step_seconds *= is_slow(candidate) ? factor : 1;
      if (seen.size() % 5 == 4 && is_slow(candidate)) {
        evaluation.feasible =
            false;  // such as a run that failed; there are few that are not slow, and none is run twice
      }
      return evaluation;
    };
    const auto answer = planner.plan(
        {.problem = problem, .objective = objective, .seconds = 20, .evaluator = evaluator, .max_evaluations = kMost});
    ASSERT_TRUE(answer && answer->best) << planner.name;
    EXPECT_LE(std::ssize(seen), kMost) << planner.name;
    EXPECT_GT(std::ssize(seen), 5) << planner.name;
    EXPECT_TRUE(answer->evaluation.feasible);
    EXPECT_FALSE(is_slow(*answer->best)) << planner.name << " after " << seen.size();
  }
}

// One device of each type and too little memory for most plans: nearly all that a fresh policy draws is impossible,
// which costs no evaluation; with no more than the rewards of a hundred plans it mostly comes near the optimum.
TEST(LearnedPlanners, LearnFromFewRewardsAloneAmongManyImpossiblePlans) {
  const planning::Objective objective{.criterion = planning::Criterion::kMinStepTime};
  int with_plan = 0;
  int near = 0;
  std::string found;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const planning::Problem problem = random_problem({.layers = 12,
                                                      .types = 4,
                                                      .cost_model = planning::CostModel::kPipeline,
                                                      .max_count = 1,
                                                      .memory = true,
                                                      .links = true},
                                                     seed);
    const auto optimum = plan_exact({.problem = problem, .objective = objective});
    ASSERT_TRUE(optimum && optimum->proved);
    if (!optimum->best) continue;
    ++with_plan;
    const auto evaluator = [&](const planning::Candidate& candidate) {
      planning::Evaluation evaluation = planning::evaluate(problem, candidate, objective);
      EXPECT_TRUE(evaluation.feasible) << evaluation.violation;
      return evaluation;
    };
    const auto answer = plan_by_policy_gradient({.problem = problem,
                                                 .objective = objective,
                                                 .seed = seed,
                                                 .seconds = 300,
                                                 .evaluator = evaluator,
                                                 .max_evaluations = 100},
                                                make_attention_policy, {.pre_trains = false});
    ASSERT_TRUE(answer && answer->best) << seed;
    EXPECT_LE(answer->evaluations, 100);
    near += answer->evaluation.step_seconds <= 1.15 * optimum->evaluation.step_seconds ? 1 : 0;
    found += fmt::format("{}: {:.3f} after {}; ", seed,
                         answer->evaluation.step_seconds / optimum->evaluation.step_seconds, answer->evaluations);
  }
  EXPECT_GE(with_plan, 3);
  EXPECT_GE(2 * near, with_plan) << found;
}

// Counts that just meet the minimum throughput by the cost model miss it by an evaluator that is a tenth slower.
TEST(LearnedPlanners, ProvisionForTheFloorAsTheEvaluatorSeesIt) {
  const planning::Problem problem =
      random_problem({.layers = 5, .types = 2, .min_count = 50, .max_count = 60, .fractions = false}, 2);
  const auto fastest =
      plan_exact({.problem = problem, .objective = {.criterion = planning::Criterion::kMaxThroughput}});
  ASSERT_TRUE(fastest && fastest->best);
  const planning::Objective objective{.min_throughput = 0.3 * fastest->evaluation.throughput};
  const auto evaluator = [&](const planning::Candidate& candidate) {
    planning::Evaluation evaluation = planning::evaluate(problem, candidate, objective);
    evaluation.throughput *= 0.9;
    evaluation.feasible = evaluation.feasible && evaluation.throughput >= objective.min_throughput;
    return evaluation;
  };
  const auto answer =
      plan_by_policy_gradient({.problem = problem, .objective = objective, .evaluator = evaluator}, lstm, kQuick);
  ASSERT_TRUE(answer && answer->best);
  EXPECT_GE(0.9 * planning::evaluate(problem, *answer->best, objective).throughput, objective.min_throughput);
}

// Time passes with every look at it, and may be made to pass besides.
class PassingClock final : public Clock {
 public:
  double now() const override { return now_ += 0.05; }
  void sleep_until(double time) override { now_ = std::max(now_, time); }
  void advance(double seconds) { now_ += seconds; }

 private:
  mutable double now_ = 0;
};

TEST(LearnedPlanners, EndWhenAsked) {
  const planning::Problem problem = random_problem({.layers = 12, .types = 3}, 1);
  for (const auto& planner : learned_planners()) {
    std::stop_source source;
    source.request_stop();
    const auto stopped = planner.plan({.problem = problem, .stop = source.get_token()});
    ASSERT_TRUE(stopped);
    EXPECT_TRUE(stopped->stopped);
    EXPECT_EQ(stopped->evaluations, 0);

    // The first evaluation takes all the time there is: the search ends with what it found.
    PassingClock clock;
    int calls = 0;
    const auto evaluator = [&](const planning::Candidate& candidate) {
      clock.advance(10);
      ++calls;
      return planning::evaluate(problem, candidate, {});
    };
    if (planner.name != "rl-attention") {  // this one evaluates in threads, which this clock is not for
      const auto limited = planner.plan({.problem = problem, .seconds = 10, .clock = clock, .evaluator = evaluator});
      ASSERT_TRUE(limited);
      EXPECT_TRUE(limited->stopped);
      EXPECT_TRUE(limited->best.has_value());
      EXPECT_EQ(calls, 1);
    }
  }
}

}  // namespace
}  // namespace motley::planning
