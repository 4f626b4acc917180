// A cluster for schedules is read from a description or a file, with the bandwidths that are given beside it.
#include "motley/app/schedule_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::app {
namespace {

TEST(ScheduleTopology, DescriptionsAndWhatStandsInForNone) {
  const auto given = make_topology({.cluster = "4x8"});
  ASSERT_TRUE(given) << given.error().message;
  EXPECT_EQ(given->devices(), 32);
  const auto otherwise = make_topology({}, *given);
  ASSERT_TRUE(otherwise);
  EXPECT_EQ(otherwise->devices(), 32);
}

TEST(ScheduleTopology, BandwidthsOfTheRequestAreThoseOfTheNetwork) {
  const auto topology = make_topology({.cluster = "4x8", .intra_node_bandwidth = 1e10, .inter_node_bandwidth = 1e9});
  ASSERT_TRUE(topology);
  EXPECT_DOUBLE_EQ(topology->network.intra_node_bandwidth, 1e10);
  EXPECT_DOUBLE_EQ(topology->network.inter_node_bandwidth, 1e9);
}

TEST(ScheduleTopology, AClusterFileWithoutNodesIsRefused) {
  const TemporaryFolder folder;
  const std::string file = (folder.path / "cluster.yaml").string();
  ASSERT_TRUE(write_file(file, "version: 2\ndevice_types:\n- {name: cpu, kind: cpu, memory: 16 GiB, count: 2}\n"));
  const auto topology = make_topology({.cluster = file});
  ASSERT_FALSE(topology);
  EXPECT_EQ(topology.error().message, file + ": has no nodes with devices; accepted: one or more");
}

TEST(ScheduleTopology, OfAClusterAreItsNodes) {
  const auto cluster = cluster::parse_cluster(R"(version: 2
device_types:
  - {name: gpu, kind: cuda, count: 6}
  - {name: cpu, kind: cpu, count: 2}
nodes:
  - {name: big, devices: [{type: gpu, count: 4}, {type: cpu, count: 2}]}
  - {name: small, devices: [{type: gpu, count: 2}]}
links:
  - {from: big, to: big, bandwidth: 80 Gbit/s}
  - {from: big, to: small, bandwidth: 8 Gbit/s}
)",
                                              "cluster.yaml");
  ASSERT_TRUE(cluster) << cluster.error().message;
  const scheduling::ClusterTopology topology = make_topology(*cluster);
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[0].name, "big");
  EXPECT_EQ(topology.nodes[0].devices, 6);
  EXPECT_EQ(topology.nodes[1].devices, 2);
  EXPECT_DOUBLE_EQ(topology.network.intra_node_bandwidth, 1e10);
  EXPECT_DOUBLE_EQ(topology.network.inter_node_bandwidth, 1e9);
}

}  // namespace
}  // namespace motley::app
