// A cluster for schedules is read from a description or a file, with the bandwidths that are given beside it.
#include "motley/app/schedule_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::app {
namespace {

TEST(ScheduleTopology, DescriptionsAndWhatStandsInForNone) {
  const auto given = make_topology({.topology = "4x8"});
  ASSERT_TRUE(given) << given.error().message;
  EXPECT_EQ(given->devices(), 32);
  const auto otherwise = make_topology({}, *given);
  ASSERT_TRUE(otherwise);
  EXPECT_EQ(otherwise->devices(), 32);
}

TEST(ScheduleTopology, BandwidthsAreInGigabits) {
  const auto topology = make_topology({.topology = "4x8", .intra_node_bandwidth = 80, .inter_node_bandwidth = 8});
  ASSERT_TRUE(topology);
  EXPECT_DOUBLE_EQ(topology->network.intra_node_bandwidth, 1e10);
  EXPECT_DOUBLE_EQ(topology->network.inter_node_bandwidth, 1e9);
}

TEST(ScheduleTopology, AClusterFileWithoutNodesIsRefused) {
  const TemporaryFolder folder;
  const std::string file = (folder.path / "cluster.yaml").string();
  ASSERT_TRUE(write_file(file, "version: 2\ndevice_types:\n- {name: cpu, kind: cpu, memory: 16 GiB, count: 2}\n"));
  const auto topology = make_topology({.topology = file});
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().message, file + ": has no nodes with devices; accepted: one or more");
}

}  // namespace
}  // namespace motley::app
