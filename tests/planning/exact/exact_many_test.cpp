// The exact planner against brute force on more than a thousand instances.
#include <gtest/gtest.h>

#include "tests/planning/search/exact_instances.h"

namespace motley::planning {
namespace {

TEST(ExactMany, EqualsBruteForceOnRandomInstances) {
  Tally tally;
  for (std::uint64_t seed = 1000; seed < 2200; ++seed) {
    expect_equal_to_brute_force(random_instance(seed), tally);
  }
  EXPECT_EQ(tally.instances, 1200);
  EXPECT_GT(tally.infeasible, 20);
  EXPECT_GT(tally.of_several_stages, 400);
  RecordProperty("instances", tally.instances);
  RecordProperty("infeasible", tally.infeasible);
  RecordProperty("of_several_stages", tally.of_several_stages);
}

TEST(ExactMany, EqualsBruteForceWhereRoundTripsSetTheRate) {
  Tally tally;
  for (std::uint64_t seed = 1000; seed < 2200; ++seed) {
    expect_equal_to_brute_force(instance_of_slow_links(seed), tally);
  }
  EXPECT_GT(tally.of_runs, 50);
}

}  // namespace
}  // namespace motley::planning
