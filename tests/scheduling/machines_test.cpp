#include "motley/scheduling/trace/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/scheduling/simulator/placing.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(Machines, AreReadFromText) {
  EXPECT_EQ(parse_machines("128")->servers.size(), 1U);
  EXPECT_EQ(parse_machines("128")->devices(), 128);
  const auto servers = parse_machines("5x8");
  ASSERT_TRUE(servers);
  EXPECT_EQ(servers->servers.size(), 5U);
  EXPECT_EQ(servers->devices(), 40);
  EXPECT_EQ(servers->racks, 1);
  const auto racks = parse_machines("5x8/2");
  ASSERT_TRUE(racks);
  EXPECT_EQ(racks->racks, 3);
  EXPECT_EQ(racks->servers[3].rack, 1);
  EXPECT_EQ(racks->servers[4].rack, 2);
}

TEST(Machines, OtherTextIsRefused) {
  for (const char* text : {"", "x", "0", "-1", "8x", "x8", "8x0", "8x8/", "8x8/0", "8/8", "8x8x8", "8 x 8", "1e3",
                           "1000001", "1000x1001", "99999999999", "8x8/2 "}) {
    const auto machines = parse_machines(text);
    ASSERT_FALSE(machines) << text;
    EXPECT_THAT(machines.error().message, HasSubstr(fmt::format("'{}'", text)));
    EXPECT_THAT(machines.error().message, HasSubstr("16x8/4"));
  }
}

Placement place(const Machines& machines, const Placement& taken, int workers, Packing packing) {
  const Job job{"a", 0, 1, workers};
  Room room(machines, packing);
  room.take(job, taken);
  return room.place(job, workers);
}

TEST(Room, TogetherSplitsNothingThatFitsOnAServer) {
  const Machines machines = uniform(3, 8);
  const Placement taken = {{0, 5}, {1, 2}};
  EXPECT_EQ(place(machines, taken, 3, Packing::kTogether), (Placement{{0, 3}}));
  EXPECT_EQ(place(machines, taken, 4, Packing::kTogether), (Placement{{1, 4}}));
  EXPECT_EQ(place(machines, taken, 8, Packing::kTogether), (Placement{{2, 8}}));
  EXPECT_EQ(place(machines, taken, 9, Packing::kTogether), (Placement{{0, 1}, {2, 8}}));
  EXPECT_EQ(place(machines, taken, 14, Packing::kTogether), (Placement{{1, 6}, {2, 8}}));
  EXPECT_EQ(place(machines, taken, 15, Packing::kTogether), Placement()) << "17 are free, but 7 in no place";
  EXPECT_EQ(place(machines, taken, 15, Packing::kAnywhere), (Placement{{0, 3}, {1, 6}, {2, 6}}));
  EXPECT_EQ(place(machines, taken, 18, Packing::kAnywhere), Placement());
}

TEST(Room, TogetherTakesTheLargestOfUnlikeServersFirst) {
  const Machines machines{{{"a", 2}, {"b", 8}, {"c", 4}}};
  EXPECT_EQ(place(machines, {}, 13, Packing::kTogether), (Placement{{0, 1}, {1, 8}, {2, 4}}));
  EXPECT_EQ(place(machines, {}, 14, Packing::kTogether), (Placement{{0, 2}, {1, 8}, {2, 4}}));
}

TEST(Room, RingsGoOverFewServersAndFullUplinksNot) {
  Machines machines = uniform(4, 4, 2);
  EXPECT_EQ(place(machines, {{0, 2}}, 2, Packing::kRing), (Placement{{0, 2}})) << "where least is left over";
  EXPECT_EQ(place(machines, {{0, 2}}, 6, Packing::kRing), (Placement{{0, 2}, {1, 4}})) << "in one rack";
  machines.servers[1].uplink = 1;
  Job job{"a", 0, 1, 6};
  job.elastic.emplace();
  job.elastic->most = 6;
  job.elastic->reserve = 2;
  const Room room(machines, Packing::kRing);
  EXPECT_EQ(room.place(job, 6), (Placement{{2, 4}, {3, 2}}));
  EXPECT_EQ(room.place(job, 4), (Placement{{0, 4}}));
  EXPECT_FALSE(room.has_room(job, {{0, 4}, {1, 2}}));
}

TEST(Occupancy, CountsWhatIsTaken) {
  const Machines machines = uniform(2, 4);
  Occupancy occupancy(machines);
  const Placement placement = {{0, 4}, {1, 1}};
  EXPECT_TRUE(occupancy.has_room(placement));
  occupancy.take(placement);
  EXPECT_EQ(occupancy.free(), 3);
  EXPECT_EQ(occupancy.free_on(0), 0);
  EXPECT_FALSE(occupancy.has_room(placement));
  occupancy.give_back(placement);
  EXPECT_EQ(occupancy.free(), 8);
}

}  // namespace
}  // namespace motley::scheduling
