// Seeded randomness: permutations are permutations, draws have the moments they claim.
#include "motley/base/random.h"

#include <gtest/gtest.h>

#include <set>

namespace motley {
namespace {

TEST(Random, PermutationHoldsEachValueOnceAndDependsOnTheSeed) {
  for (std::uint32_t size : {0U, 1U, 2U, 7U, 1000U}) {
    const auto order = permutation(size, 5);
    EXPECT_EQ(std::set<std::uint32_t>(order.begin(), order.end()).size(), size);
    EXPECT_EQ(order, permutation(size, 5));
  }
  EXPECT_NE(permutation(1000, 5), permutation(1000, 6));
}

TEST(Random, MomentsAreRight) {
  Random random(1);
  double sum = 0, squares = 0, exponential = 0;
  const int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    const double value = random.normal();
    sum += value;
    squares += value * value;
    exponential += random.exponential(0.25);
  }
  EXPECT_NEAR(sum / draws, 0, 0.02);
  EXPECT_NEAR(squares / draws, 1, 0.02);
  EXPECT_NEAR(exponential / draws, 0.25, 0.005);
}

TEST(Random, MixDependsOnOrder) {
  EXPECT_NE(mix({1, 2}), mix({2, 1}));
}

}  // namespace
}  // namespace motley
