// What a server would be asked for: the model's size and seconds, from where they are known.
#include "motley/app/machine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley::app {
namespace {

using testing::HasSubstr;

TEST(ServerCheck, PublishedSecondsAreReplacedByGivenOnes) {
  ServerCheck check;
  const auto published = read_served_model(check);
  ASSERT_TRUE(published) << published.error().message;
  EXPECT_THAT(published->source, HasSubstr("published for batch"));
  EXPECT_GT(published->model.bytes, 80e6);
  EXPECT_EQ(published->model.state_arrays, 1);
  check.seconds_per_batch = 0.25;
  check.optimizer = "adam";
  check.wire = "bfloat16";
  const auto given = read_served_model(check);
  ASSERT_TRUE(given);
  EXPECT_EQ(given->source, "as given");
  EXPECT_EQ(given->model.seconds_per_batch, 0.25);
  EXPECT_EQ(given->model.state_arrays, 2);
  EXPECT_EQ(given->model.wire_fraction, 0.5);
}

TEST(ServerCheck, SwitchesAddWholeIntegersWhateverTheWireCarries) {
  ServerCheck check;
  check.racks = 4;
  check.seconds_per_batch = 1;
  const auto whole = read_served_model(check);
  check.wire = "bfloat16";
  const auto half = read_served_model(check);
  ASSERT_TRUE(whole && half);
  const RackWays wide = compare_rack_ways(check, *whole);
  const RackWays narrow = compare_rack_ways(check, *half);
  ASSERT_EQ(wide.ways.size(), 4u);
  EXPECT_LT(narrow.ways[0].seconds, 0.6 * wide.ways[0].seconds);
  EXPECT_NEAR(narrow.ways[3].seconds, wide.ways[3].seconds, 0.01 * wide.ways[3].seconds);
  EXPECT_EQ(narrow.slots_for_full_rate, wide.slots_for_full_rate);
}

}  // namespace
}  // namespace motley::app
