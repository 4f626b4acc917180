#include "motley/scheduling/trace/cluster_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/scheduling/simulator/placement.h"

namespace motley::scheduling {
namespace {

using ::testing::HasSubstr;

TEST(ClusterTopology, AreReadFromText) {
  EXPECT_EQ(parse_topology("128")->nodes.size(), 1U);
  EXPECT_EQ(parse_topology("128")->devices(), 128);
  const auto nodes = parse_topology("5x8");
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->nodes.size(), 5U);
  EXPECT_EQ(nodes->devices(), 40);
  EXPECT_EQ(nodes->racks, 1);
  const auto racks = parse_topology("5x8/2");
  ASSERT_TRUE(racks);
  EXPECT_EQ(racks->racks, 3);
  EXPECT_EQ(racks->nodes[3].rack, 1);
  EXPECT_EQ(racks->nodes[4].rack, 2);
}

TEST(ClusterTopology, OtherTextIsRefused) {
  for (const char* text : {"", "x", "0", "-1", "8x", "x8", "8x0", "8x8/", "8x8/0", "8/8", "8x8x8", "8 x 8", "1e3",
                           "1000001", "1000x1001", "99999999999", "8x8/2 "}) {
    const auto topology = parse_topology(text);
    ASSERT_FALSE(topology) << text;
    EXPECT_THAT(topology.error().message, HasSubstr(fmt::format("'{}'", text)));
    EXPECT_THAT(topology.error().message, HasSubstr("16x8/4"));
  }
}

Placement place(const ClusterTopology& topology, const Placement& taken, int workers, PlacementStrategy strategy) {
  const Job job{"a", 0, 1, workers};
  Placer placer(topology, strategy);
  placer.take(job, taken);
  return placer.place(job, workers);
}

TEST(Placer, TogetherSplitsNothingThatFitsOnAServer) {
  const ClusterTopology topology = uniform(3, 8);
  const Placement taken = {{0, 5}, {1, 2}};
  EXPECT_EQ(place(topology, taken, 3, PlacementStrategy::kConsolidated), (Placement{{0, 3}}));
  EXPECT_EQ(place(topology, taken, 4, PlacementStrategy::kConsolidated), (Placement{{1, 4}}));
  EXPECT_EQ(place(topology, taken, 8, PlacementStrategy::kConsolidated), (Placement{{2, 8}}));
  EXPECT_EQ(place(topology, taken, 9, PlacementStrategy::kConsolidated), (Placement{{0, 1}, {2, 8}}));
  EXPECT_EQ(place(topology, taken, 14, PlacementStrategy::kConsolidated), (Placement{{1, 6}, {2, 8}}));
  EXPECT_EQ(place(topology, taken, 15, PlacementStrategy::kConsolidated), Placement())
      << "17 are free, but 7 in no place";
  EXPECT_EQ(place(topology, taken, 15, PlacementStrategy::kAny), (Placement{{0, 3}, {1, 6}, {2, 6}}));
  EXPECT_EQ(place(topology, taken, 18, PlacementStrategy::kAny), Placement());
}

TEST(Placer, TogetherTakesTheLargestOfHeterogeneousNodesFirst) {
  const ClusterTopology topology{{{"a", 2}, {"b", 8}, {"c", 4}}};
  EXPECT_EQ(place(topology, {}, 13, PlacementStrategy::kConsolidated), (Placement{{0, 1}, {1, 8}, {2, 4}}));
  EXPECT_EQ(place(topology, {}, 14, PlacementStrategy::kConsolidated), (Placement{{0, 2}, {1, 8}, {2, 4}}));
}

TEST(Placer, RingsGoOverFewNodesAndFullUplinksNot) {
  ClusterTopology topology = uniform(4, 4, 2);
  EXPECT_EQ(place(topology, {{0, 2}}, 2, PlacementStrategy::kCompact), (Placement{{0, 2}}))
      << "where least is left over";
  EXPECT_EQ(place(topology, {{0, 2}}, 6, PlacementStrategy::kCompact), (Placement{{0, 2}, {1, 4}})) << "in one rack";
  topology.nodes[1].uplink = 1;
  Job job{"a", 0, 1, 6};
  job.elastic.emplace();
  job.elastic->max_workers = 6;
  job.elastic->reserve = 2;
  const Placer placer(topology, PlacementStrategy::kCompact);
  EXPECT_EQ(placer.place(job, 6), (Placement{{2, 4}, {3, 2}}));
  EXPECT_EQ(placer.place(job, 4), (Placement{{0, 4}}));
  EXPECT_FALSE(placer.fits(job, {{0, 4}, {1, 2}}));
}

TEST(Occupancy, CountsWhatIsTaken) {
  const ClusterTopology topology = uniform(2, 4);
  Occupancy occupancy(topology);
  const Placement placement = {{0, 4}, {1, 1}};
  EXPECT_TRUE(occupancy.fits(placement));
  occupancy.take(placement);
  EXPECT_EQ(occupancy.free(), 3);
  EXPECT_EQ(occupancy.free_on(0), 0);
  EXPECT_FALSE(occupancy.fits(placement));
  occupancy.release(placement);
  EXPECT_EQ(occupancy.free(), 8);
}

}  // namespace
}  // namespace motley::scheduling
