// Of several numbers of micro-batches the best is taken, and only what holds for all of them counts as proved.
#include "motley/app/planning_input.h"

#include <gtest/gtest.h>

#include <map>

#include "motley/planning/search/random_problem.h"

namespace motley::app {
namespace {

// Answers each problem as the test says, by its number of micro-batches.
struct Oracle {
  std::map<std::int64_t, Result<planning::Answer>> answers;
  double seconds = 0;
  std::uint64_t seed = 0;

  planning::Planner planner() {
    return {"oracle", [this](const planning::Request& request) {
              seconds = request.seconds;
              seed = request.seed;
              return answers.at(request.problem.micro_batches);
            }};
  }
};

// A plan whose step takes so long.
planning::Answer make_answer(double step_seconds, bool proved, double bound) {
  planning::Answer answer;
  answer.best.emplace();
  answer.evaluation.feasible = true;
  answer.evaluation.step_seconds = step_seconds;
  answer.proved = proved;
  answer.bound = bound;
  answer.seconds = 1;
  return answer;
}

class Solving : public testing::Test {
 protected:
  Solving() {
    for (const std::int64_t count : {1, 2, 4}) {
      problems_.push_back(planning::random_problem({.layers = 3, .types = 2, .max_count = 2, .links = true}, 1));
      problems_.back().micro_batches = count;
    }
  }
  Result<Solved> ask_oracle() {
    return solve(oracle_.planner(), problems_, {.criterion = planning::Criterion::kMinStepTime},
                 {.seconds = 30, .seed = 7}, {});
  }
  std::vector<planning::Problem> problems_;
  Oracle oracle_;
};

TEST_F(Solving, TheShortestStepWinsAndTheTimeIsShared) {
  oracle_.answers = {{1, make_answer(3, true, 3)}, {2, make_answer(1, true, 1)}, {4, make_answer(2, true, 2)}};
  const auto solved = ask_oracle();
  ASSERT_TRUE(solved) << solved.error().message;
  EXPECT_EQ(solved->problem, &problems_[1]);
  EXPECT_EQ(solved->answer.evaluation.step_seconds, 1);
  EXPECT_TRUE(solved->answer.proved);
  EXPECT_EQ(solved->answer.bound, 1);
  EXPECT_EQ(solved->answer.seconds, 3);
  EXPECT_EQ(oracle_.seconds, 10);
  EXPECT_EQ(oracle_.seed, 7u);
}

TEST_F(Solving, OneThatIsNotProvedWeakensTheBound) {
  oracle_.answers = {{1, make_answer(3, true, 3)}, {2, make_answer(2, true, 2)}, {4, make_answer(4, false, 0.5)}};
  const auto solved = ask_oracle();
  ASSERT_TRUE(solved);
  EXPECT_EQ(solved->problem, &problems_[1]);
  EXPECT_FALSE(solved->answer.proved);
  EXPECT_EQ(solved->answer.bound, 0.5);
}

TEST_F(Solving, NoneIsProvedImpossibleOnlyWhereAllAre) {
  planning::Answer none;
  none.proved = true;
  oracle_.answers = {{1, none}, {2, none}, {4, none}};
  auto solved = ask_oracle();
  ASSERT_TRUE(solved);
  EXPECT_FALSE(solved->answer.best);
  EXPECT_TRUE(solved->answer.proved);
  EXPECT_EQ(solved->answer.bound, 0);
  oracle_.answers.at(4)->proved = false;
  solved = ask_oracle();
  ASSERT_TRUE(solved);
  EXPECT_FALSE(solved->answer.best);
  EXPECT_FALSE(solved->answer.proved);
}

TEST_F(Solving, ANumberThatThePlannerRefusesIsLeftOutAndThenNothingIsProved) {
  oracle_.answers = {{1, fail(ErrorCode::kInvalidInput, "too many layers")},
                     {2, make_answer(3, true, 3)},
                     {4, make_answer(2, true, 2)}};
  auto solved = ask_oracle();
  ASSERT_TRUE(solved) << solved.error().message;
  EXPECT_EQ(solved->problem, &problems_[2]);
  EXPECT_EQ(solved->answer.evaluation.step_seconds, 2);
  EXPECT_FALSE(solved->answer.proved);
  EXPECT_EQ(solved->answer.bound, 0);

  planning::Answer none;
  none.proved = true;
  oracle_.answers = {{1, fail(ErrorCode::kInvalidInput, "too many layers")}, {2, none}, {4, none}};
  solved = ask_oracle();
  ASSERT_TRUE(solved) << solved.error().message;
  EXPECT_FALSE(solved->answer.best);
  EXPECT_FALSE(solved->answer.proved) << "of one number nothing is known";
}

TEST_F(Solving, WhatThePlannerRefusesInEveryNumberIsAnError) {
  oracle_.answers = {{1, fail(ErrorCode::kInvalidInput, "too many layers")},
                     {2, fail(ErrorCode::kInvalidInput, "too many layers")},
                     {4, fail(ErrorCode::kInvalidInput, "too many layers")}};
  const auto refused = ask_oracle();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "too many layers");
  // What is no refusal ends it at once.
  oracle_.answers = {
      {1, make_answer(3, true, 3)}, {2, fail(ErrorCode::kInternal, "broken")}, {4, make_answer(2, true, 2)}};
  const auto broken = ask_oracle();
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().message, "broken");
}

TEST_F(Solving, WhoeverShowsProgressIsAskedInstead) {
  oracle_.answers = {{1, make_answer(3, true, 3)}, {2, make_answer(1, true, 1)}, {4, make_answer(2, true, 2)}};
  int asked = 0;
  const Ask count = [&](const planning::Planner& planner, planning::Request request) {
    ++asked;
    return planner.plan(request);
  };
  ASSERT_TRUE(solve(oracle_.planner(), problems_, {.criterion = planning::Criterion::kMinStepTime}, {}, {}, count));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace motley::app
