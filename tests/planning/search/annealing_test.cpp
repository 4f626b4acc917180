// Simulated annealing: what it returns is a plan no worse than what it began with, and near the best that there is.
#include "motley/planning/search/annealing.h"

#include <gtest/gtest.h>

#include "tests/planning/search/exact_instances.h"

namespace motley::planning {
namespace {

const auto kNever = [] { return false; };

// Of each instance the first of some random plans that is feasible.
template <class Visit>
void visit_plans(Visit visit) {
  int visited = 0;
  for (std::uint64_t seed = 0; visited < 60; ++seed) {
    const Instance instance = seed % 2 == 0 ? random_instance(seed) : instance_of_slow_links(seed);
    if (instance.problem.cost_model != CostModel::kPipeline) continue;
    const Request request{.problem = instance.problem, .objective = instance.objective};
    for (std::uint64_t i = 0; i < 100; ++i) {
      const Candidate plan = random_candidate(instance.problem, mix({seed, i}));
      if (!evaluate(instance.problem, plan, instance.objective).feasible) continue;
      SCOPED_TRACE(instance.words);
      visit(request, plan);
      ++visited;
      break;
    }
  }
}

double evaluate_value(const Request& request, const Candidate& plan) {
  return value(evaluate(request.problem, plan, request.objective), request.objective.criterion);
}

TEST(Annealing, FindsTheBestPlanOfMostSmallProblems) {
  int best = 0;
  int problems = 0;
  visit_plans([&](const Request& request, const Candidate& begin) {
    Random random(++problems);
    const Candidate found = anneal(request, begin, 20'000, random, kNever);
    const auto reference = plan_brute_force(request);
    ASSERT_TRUE(reference && reference->best);
    const double least = evaluate_value(request, *reference->best);
    EXPECT_GE(evaluate_value(request, found), least * (1 - 1e-9));
    EXPECT_LE(evaluate_value(request, found), evaluate_value(request, begin));
    best += evaluate_value(request, found) <= least * (1 + 1e-9) ? 1 : 0;
  });
  EXPECT_GT(best, 0.8 * problems);
}

TEST(Annealing, DependsOnNothingButTheSeed) {
  visit_plans([&](const Request& request, const Candidate& begin) {
    Random one(7);
    Random other(7);
    EXPECT_EQ(anneal(request, begin, 500, one, kNever), anneal(request, begin, 500, other, kNever));
  });
}

TEST(Annealing, ReturnsWhatItBeganWithWhereThereIsNoTime) {
  visit_plans([&](const Request& request, const Candidate& begin) {
    Random random(7);
    EXPECT_EQ(anneal(request, begin, 0, random, kNever), begin);
    EXPECT_EQ(anneal(request, begin, 500, random, [] { return true; }), begin);
  });
}

}  // namespace
}  // namespace motley::planning
