// Programs against the best of all whole numbers, and against linear programs worked out by hand.
#include "motley/scheduling/policies/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/random.h"

namespace motley::scheduling {
namespace {

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_program_solver()) GTEST_SKIP() << "needs HiGHS, and this build has none";
  }
};

TEST_F(ProgramTest, SolvesALinearOne) {
  Program program;
  const int x = program.add_variable(3, 0, Program::kUnlimited);
  const int y = program.add_variable(5, 0, Program::kUnlimited);
  program.add_limit({{x, 1}}, -Program::kUnlimited, 4);
  program.add_limit({{y, 2}}, -Program::kUnlimited, 12);
  program.add_limit({{x, 3}, {y, 2}}, -Program::kUnlimited, 18);
  const auto answer = program.maximise();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_NEAR(answer->worth, 36, 1e-9);
  EXPECT_NEAR(answer->values[0], 2, 1e-9);
  EXPECT_NEAR(answer->values[1], 6, 1e-9);
  ASSERT_EQ(answer->prices.size(), 3U);
  EXPECT_NEAR(answer->prices[0], 0, 1e-9);
  EXPECT_NEAR(answer->prices[1], 1.5, 1e-9);
  EXPECT_NEAR(answer->prices[2], 1, 1e-9);
}

TEST_F(ProgramTest, FindsTheBestOfAllKnapsacks) {
  Random random(1);
  for (int trial = 0; trial < 30; ++trial) {
    constexpr int kItems = 10;
    Program program;
    Program::Terms weights;
    std::vector<double> worths;
    for (int i = 0; i < kItems; ++i) {
      worths.push_back(1 + random.uniform());
      weights.emplace_back(program.add_variable(worths.back(), 0, 1, true), 1 + random.uniform());
    }
    const double most = 6;
    program.add_limit(weights, 0, most);
    const auto answer = program.maximise({.gap = 0});
    ASSERT_TRUE(answer) << answer.error().message;
    double best = 0;
    for (int chosen = 0; chosen < 1 << kItems; ++chosen) {
      double worth = 0, weight = 0;
      for (int i = 0; i < kItems; ++i) {
        if ((chosen >> i & 1) == 0) continue;
        worth += worths[static_cast<std::size_t>(i)];
        weight += weights[static_cast<std::size_t>(i)].second;
      }
      if (weight <= most) best = std::max(best, worth);
    }
    EXPECT_NEAR(answer->worth, best, 1e-6);
    EXPECT_GE(answer->bound, best - 1e-6);
  }
}

TEST_F(ProgramTest, SaysThatThereIsNoAnswer) {
  Program program;
  const int x = program.add_variable(1, 0, 1);
  program.add_limit({{x, 1}}, 2, 3);
  const auto answer = program.maximise();
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace motley::scheduling
