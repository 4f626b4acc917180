// Borders between regimes are where enumeration of single values sees the plan change, and impossible questions are
// refused.
#include "motley/planning/search/found_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/planning/methods.h"
#include "motley/planning/search/random_problem.h"

namespace motley::planning {
namespace {

using testing::HasSubstr;

planning::Problem small_problem(std::uint64_t seed) {
  return random_problem({.layers = 5, .types = 2, .max_count = 4, .links = true}, seed);
}

TEST(WhatIf, RegimesAreWhereSinglePricesChangeThePlan) {
  const Planner exact{"exact", plan_exact};
  int borders = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const planning::Problem problem = small_problem(seed);
    const Request request{.problem = problem, .objective = {}};
    const double price = problem.types[0].price_per_hour;
    const auto question =
        parse_what_if(fmt::format("{}.price={}..{}", problem.types[0].name, price / 20, price * 20), problem);
    ASSERT_TRUE(question) << question.error().message;
    const auto regimes = what_if(exact, request, *question);
    ASSERT_TRUE(regimes) << regimes.error().message;
    ASSERT_FALSE(regimes->empty());
    EXPECT_DOUBLE_EQ(regimes->front().from, question->low);
    for (std::size_t i = 0; i < regimes->size(); ++i) {
      // A little above each border stands that regime's plan, a little below the one before.
      planning::Problem changed = problem;
      changed.types[0].price_per_hour = (*regimes)[i].from * (1 + 1e-9);
      EXPECT_EQ(exact.plan({.problem = changed, .objective = {}})->best, (*regimes)[i].answer.best);
      if (i > 0) {
        ++borders;
        changed.types[0].price_per_hour = (*regimes)[i].from * (1 - 2e-3);
        EXPECT_EQ(exact.plan({.problem = changed, .objective = {}})->best, (*regimes)[i - 1].answer.best) << seed;
      }
    }
  }
  EXPECT_GT(borders, 5);  // prices do change plans
}

TEST(WhatIf, SingleValuesAndCounts) {
  const Planner exact{"exact", plan_exact};
  const planning::Problem problem = small_problem(3);
  const Request request{.problem = problem, .objective = {.criterion = planning::Criterion::kMaxThroughput}};
  const auto question = parse_what_if(problem.types[1].name + ".count=9", problem);
  ASSERT_TRUE(question);
  const auto regimes = what_if(exact, request, *question);
  ASSERT_TRUE(regimes);
  ASSERT_EQ(regimes->size(), 1u);
  planning::Problem changed = problem;
  changed.types[1].count = 9;
  EXPECT_EQ(regimes->front().answer.best, exact.plan({.problem = changed, .objective = request.objective})->best);
}

TEST(WhatIf, OneMoreIsNeverWorseAndOneFewerNeverBetter) {
  const Planner exact{"exact", plan_exact};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const planning::Problem problem = small_problem(seed);
    const Request request{.problem = problem, .objective = {.criterion = planning::Criterion::kMaxThroughput}};
    const double now = exact.plan(request)->evaluation.throughput;
    const auto all = marginals(exact, request);
    ASSERT_TRUE(all);
    ASSERT_EQ(all->size(), 2u);
    for (const Marginal& marginal : *all) {
      EXPECT_GE(marginal.one_more.evaluation.throughput, now * (1 - 1e-12));
      if (marginal.one_fewer.best) {
        EXPECT_LE(marginal.one_fewer.evaluation.throughput, now * (1 + 1e-12));
      }
    }
  }
}

TEST(WhatIf, RefusesWhatItCannotAnswer) {
  const planning::Problem problem = small_problem(1);
  const std::string type = problem.types[0].name;
  for (const auto& [text, complaint] :
       std::vector<std::pair<std::string, std::string>>{{"price", "no value is given"},
                                                        {"abacus.price=1", "there is no device type 'abacus'"},
                                                        {type + ".colour=1", "there is no quantity 'colour'"},
                                                        {type + ".price=cheap", "'cheap' is no number"},
                                                        {type + ".price=-1", "the value must be above 0"},
                                                        {type + ".speed=0", "the value must be above 0"},
                                                        {type + ".price=3..2", "the range is empty"},
                                                        {type + ".count=1.5", "a count is an integer"},
                                                        {type + ".price=nan", "is no number"}}) {
    const auto question = parse_what_if(text, problem);
    ASSERT_FALSE(question) << text;
    EXPECT_EQ(question.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(question.error().message, HasSubstr(complaint));
    EXPECT_THAT(question.error().message, HasSubstr("accepted: TYPE.QUANTITY=VALUE"));
  }
}

}  // namespace
}  // namespace motley::planning
