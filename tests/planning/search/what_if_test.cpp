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

// Of the devices that the plan uses: with all of a type in use, one more is one that would have to be got.
TEST(WhatIf, OneMoreAndOneFewerAreOfThoseThatThePlanUses) {
  const Planner exact{"exact", plan_exact};
  int all_used = 0, some_left = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const auto criterion : {planning::Criterion::kMaxThroughput, planning::Criterion::kMinCost}) {
      const planning::Problem problem = small_problem(seed);
      const Request request{.problem = problem, .objective = {.criterion = criterion}};
      const auto best = exact.plan(request);
      ASSERT_TRUE(best && best->best);
      const auto all = marginals(exact, request, *best->best);
      ASSERT_TRUE(all) << all.error().message;
      for (const Marginal& marginal : *all) {
        const auto type = static_cast<std::size_t>(marginal.type);
        EXPECT_EQ(marginal.used, best->evaluation.used[type]);
        EXPECT_GT(marginal.used, 0);
        if (marginal.one_fewer.best) {
          EXPECT_LT(marginal.one_fewer.best->used[type], marginal.used);
          EXPECT_GE(planning::value(*marginal.one_fewer.best, criterion),
                    planning::value(best->evaluation, criterion) * (1 - 1e-9));
        }
        if (marginal.used == problem.types[type].count) {
          ++all_used;
          ASSERT_TRUE(marginal.one_more.best);
          EXPECT_LE(planning::value(*marginal.one_more.best, criterion),
                    planning::value(best->evaluation, criterion) * (1 + 1e-9));
        } else if (marginal.one_more.best) {
          ++some_left;
          EXPECT_EQ(marginal.one_more.best->used[type], marginal.used + 1);
          EXPECT_GE(planning::value(*marginal.one_more.best, criterion),
                    planning::value(best->evaluation, criterion) * (1 - 1e-9))
              << "it could have had it";
        }
      }
      const auto used = static_cast<std::size_t>(
          std::ranges::count_if(best->evaluation.used, [](std::int64_t count) { return count > 0; }));
      EXPECT_EQ(all->size(), used);
    }
  }
  EXPECT_GT(all_used, 0);
  EXPECT_GT(some_left, 0);
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
                                                        {type + ".count=1000001", "a count is at most 1000000"},
                                                        {type + ".price=nan", "is no number"}}) {
    const auto question = parse_what_if(text, problem);
    ASSERT_FALSE(question) << text;
    EXPECT_EQ(question.error().code, ErrorCode::kInvalidInput);
    EXPECT_THAT(question.error().message, HasSubstr(complaint));
    EXPECT_THAT(question.error().message, HasSubstr("accepted: TYPE.QUANTITY=VALUE"));
  }
  EXPECT_TRUE(parse_what_if(type + ".count=1000000", problem));
}

TEST(WhatIf, RefusesSpeedsAtWhichALayerWouldTakeForEver) {
  planning::Problem problem = small_problem(1);
  problem.table[problem.place(2, 0)].forward.per_sample = 10;
  const auto question = parse_what_if(problem.types[0].name + ".speed=3e-308", problem);
  ASSERT_TRUE(question) << question.error().message;
  const auto regimes = what_if({"exact", plan_exact}, {.problem = problem, .objective = {}}, *question);
  ASSERT_FALSE(regimes);
  EXPECT_EQ(regimes.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(regimes.error().message, HasSubstr("forward.per_sample is inf"));
}

}  // namespace
}  // namespace motley::planning
