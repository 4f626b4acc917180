// The seconds of each placement, worked out by hand, and when which is faster.
#include "motley/planning/cost/placement.h"

#include <gmock/gmock.h>

#include "motley/base/random.h"

namespace motley::planning {
namespace {

using ::testing::HasSubstr;

constexpr Placement kAll[] = {Placement::kCentral, Placement::kSharded, Placement::kColocated, Placement::kHierarchical,
                              Placement::kRing};

// Two racks of two workers behind 100 B/s, a server of 400 B/s in each, and uplinks of 50 B/s; 100 bytes.
PlacementProblem two_racks() {
  return {.model_bytes = 100,
          .rack_workers = {2, 2},
          .worker_bytes_per_second = 100,
          .server_bytes_per_second = 400,
          .uplink_bytes_per_second = 50,
          .servers = 2,
          .a_server_in_each_rack = true};
}

TEST(Placement, SecondsAreThoseOfTheBusiestLink) {
  const PlacementProblem problem = two_racks();
  // Both workers of the other rack push 100 bytes through the uplink.
  EXPECT_DOUBLE_EQ(central_seconds(problem), 200.0 / 50);
  // A rack sends half of what its two workers push, and half of the weights of the two others.
  EXPECT_DOUBLE_EQ(sharded_seconds(problem), 200.0 / 50);
  EXPECT_DOUBLE_EQ(colocated_seconds(problem), 200.0 / 50);
  EXPECT_DOUBLE_EQ(hierarchical_seconds(problem), 100.0 / 50);
  EXPECT_DOUBLE_EQ(unpipelined_hierarchical_seconds(problem), 100.0 / 50 + 100.0 / 100);
  EXPECT_DOUBLE_EQ(ring_seconds(problem), 150.0 / 50);
}

TEST(Placement, OneRackHasNoUplink) {
  PlacementProblem problem = {.model_bytes = 120,
                              .rack_workers = {4},
                              .worker_bytes_per_second = 10,
                              .server_bytes_per_second = 20,
                              .servers = 1};
  EXPECT_DOUBLE_EQ(central_seconds(problem), 480.0 / 20);
  EXPECT_DOUBLE_EQ(colocated_seconds(problem), 180.0 / 10);
  EXPECT_DOUBLE_EQ(ring_seconds(problem), 180.0 / 10);
  problem.servers = 3;
  EXPECT_DOUBLE_EQ(sharded_seconds(problem), 120.0 / 10);  // the workers' links
  problem.servers = 2;
  problem.server_bytes_per_second = 10;
  EXPECT_DOUBLE_EQ(sharded_seconds(problem), 480.0 / 20);
}

// Racks of one and three: the flat ways cross the larger rack's uplink with
//   sharded: 3 M / 2 + 1 M / 2, colocated: 2 * 3 * (1 / 4) M, central (in the first rack): 3 M, the hierarchy: M.
TEST(Placement, RacksMayBeUnequal) {
  PlacementProblem problem = two_racks();
  problem.rack_workers = {1, 3};
  EXPECT_DOUBLE_EQ(central_seconds(problem), 300.0 / 50);
  EXPECT_DOUBLE_EQ(sharded_seconds(problem), 200.0 / 50);
  EXPECT_DOUBLE_EQ(colocated_seconds(problem), 150.0 / 50);
  EXPECT_DOUBLE_EQ(hierarchical_seconds(problem), 100.0 / 50);
  problem.server_bytes_per_second = 60;  // now three workers' pushes keep their server busy
  EXPECT_DOUBLE_EQ(hierarchical_seconds(problem), 300.0 / 60);
}

// Luo et al., with r racks of N workers: T_flat = max(2 M (rN-1) / (rN B_w), 2 N M (r-1) / (r B_c)) and
// T_hier = max(M / B_w, N M / B_p, 2 M (r-1) / (r min(B_p, B_c))); the hierarchy is better exactly if T_hier < T_flat.
TEST(Placement, EqualRacksFollowThePublishedCondition) {
  Random random(11);
  int hierarchical = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const double racks = 2 + static_cast<double>(random.below(7));
    const double workers = 1 + static_cast<double>(random.below(8));
    const double model = 1 + 1000 * random.uniform();
    PlacementProblem problem = {.model_bytes = model,
                                .worker_bytes_per_second = 1 + 100 * random.uniform(),
                                .server_bytes_per_second = 1 + 400 * random.uniform(),
                                .uplink_bytes_per_second = 1 + 200 * random.uniform(),
                                .servers = static_cast<int>(racks),
                                .a_server_in_each_rack = true};
    problem.rack_workers.assign(static_cast<std::size_t>(racks), static_cast<int>(workers));
    const double b_w = problem.worker_bytes_per_second;
    const double b_p = problem.server_bytes_per_second;
    const double b_c = problem.uplink_bytes_per_second;
    const double flat = std::max(2 * model * (racks * workers - 1) / (racks * workers * b_w),
                                 2 * workers * model * (racks - 1) / (racks * b_c));
    const double tree =
        std::max({model / b_w, workers * model / b_p, 2 * model * (racks - 1) / (racks * std::min(b_p, b_c))});
    EXPECT_NEAR(colocated_seconds(problem), flat, 1e-9 * flat);
    EXPECT_NEAR(hierarchical_seconds(problem), tree, 1e-9 * tree);
    EXPECT_GE(unpipelined_hierarchical_seconds(problem), hierarchical_seconds(problem));
    EXPECT_LE(unpipelined_hierarchical_seconds(problem), 2 * hierarchical_seconds(problem) * (1 + 1e-12));
    if (std::abs(flat - tree) < 1e-9 * flat) continue;
    const Placement both[] = {Placement::kColocated, Placement::kHierarchical};
    const auto ranked = rank_placements(problem, both);
    ASSERT_TRUE(ranked);
    EXPECT_EQ(ranked->front().placement == Placement::kHierarchical, tree < flat);
    hierarchical += tree < flat ? 1 : 0;
  }
  EXPECT_GT(hierarchical, 200);
  EXPECT_LT(hierarchical, 1800);
}

TEST(Placement, SlowerLinksAndLargerModelsNeverTakeLess) {
  Random random(12);
  for (int trial = 0; trial < 500; ++trial) {
    PlacementProblem problem = two_racks();
    problem.rack_workers.clear();
    for (std::uint64_t rack = 0; rack < 1 + random.below(4); ++rack) {
      problem.rack_workers.push_back(1 + static_cast<int>(random.below(5)));
    }
    problem.worker_bytes_per_second = 1 + 100 * random.uniform();
    problem.uplink_bytes_per_second = 1 + 100 * random.uniform();
    PlacementProblem harder = problem;
    harder.model_bytes *= 1 + random.uniform();
    harder.worker_bytes_per_second *= random.uniform();
    harder.server_bytes_per_second *= random.uniform();
    harder.uplink_bytes_per_second *= random.uniform();
    for (const auto seconds : {central_seconds, sharded_seconds, colocated_seconds, hierarchical_seconds,
                               unpipelined_hierarchical_seconds, ring_seconds}) {
      EXPECT_GE(seconds(harder), seconds(problem));
    }
  }
}

TEST(Placement, OnlyWhatServersAllowIsRanked) {
  PlacementProblem problem = two_racks();
  auto ranked = *rank_placements(problem, kAll);
  ASSERT_EQ(ranked.size(), 5u);
  EXPECT_EQ(ranked[0].placement, Placement::kHierarchical);
  EXPECT_EQ(ranked[1].placement, Placement::kRing);
  EXPECT_EQ(ranked[2].placement, Placement::kCentral);  // of equals the one with fewer parts
  EXPECT_THAT(explain(ranked, problem), HasSubstr("hierarchical 2 s, ring 3 s, central 4 s"));
  EXPECT_THAT(explain(ranked, problem), HasSubstr("of 2 racks 50 B/s"));
  problem.a_server_in_each_rack = false;
  problem.servers = 1;
  ranked = *rank_placements(problem, kAll);
  ASSERT_EQ(ranked.size(), 3u);
  problem.servers = 0;
  problem.server_bytes_per_second = 0;
  ranked = *rank_placements(problem, kAll);
  ASSERT_EQ(ranked.size(), 2u);
  EXPECT_EQ(ranked[0].placement, Placement::kRing);
}

TEST(Placement, RefusesWhatIsNoCluster) {
  for (const auto& spoil :
       {+[](PlacementProblem& p) { p.rack_workers = {2, 0}; }, +[](PlacementProblem& p) { p.rack_workers = {}; },
        +[](PlacementProblem& p) { p.model_bytes = 0; }, +[](PlacementProblem& p) { p.worker_bytes_per_second = 0; },
        +[](PlacementProblem& p) { p.server_bytes_per_second = 0; },
        +[](PlacementProblem& p) { p.uplink_bytes_per_second = 0; }}) {
    PlacementProblem problem = two_racks();
    spoil(problem);
    const auto ranked = rank_placements(problem, kAll);
    ASSERT_FALSE(ranked);
    EXPECT_EQ(ranked.error().code, ErrorCode::kInvalidInput);
  }
}

}  // namespace
}  // namespace motley::planning
