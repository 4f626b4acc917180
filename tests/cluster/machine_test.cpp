// Limits of control groups are honoured, and this machine is a cluster that the reader accepts.
#include "motley/cluster/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace motley::cluster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class GroupTest : public ::testing::Test {
 protected:
  fs::path root_ = fs::temp_directory_path() / ("motley_group_test_" + std::to_string(::getpid()));
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& path, const std::string& content) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }
};

TEST_F(GroupTest, TheLowestLimitOfAllGroupsAboveHolds) {
  put("cpu.max", "max 100000\n");
  put("memory.max", "max\n");
  put("a/cpu.max", "150000 100000\n");
  put("a/memory.max", "8000000000\n");
  put("a/b/cpu.max", "400000 100000\n");
  put("a/b/memory.max", "9000000000\n");
  const GroupLimits limits = read_group_limits(root_, "0::/a/b\n");
  EXPECT_EQ(limits.processors, 1.5);
  EXPECT_EQ(limits.memory_bytes, 8e9);
}

TEST_F(GroupTest, VersionOneIsReadByController) {
  put("cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n");
  put("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  put("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("memory/memory.limit_in_bytes", "1000000\n");
  const GroupLimits limits = read_group_limits(root_, "4:cpu,cpuacct:/a\n3:memory:/\n2:name=systemd:/x\n");
  EXPECT_EQ(limits.processors, 0.5);
  EXPECT_EQ(limits.memory_bytes, 1e6);
}

TEST_F(GroupTest, NoFilesAreNoLimits) {
  for (const char* membership : {"", "nonsense", "0::", "0::/", "0::/../../..\n"}) {
    const GroupLimits limits = read_group_limits(root_, membership);
    EXPECT_FALSE(limits.processors);
    EXPECT_FALSE(limits.memory_bytes);
  }
}

// As /sys/class/net is: cards have a device below them, and a speed of -1, or none that can be read, without a link.
TEST_F(GroupTest, CardsWithALinkHaveASpeed) {
  put("eth1/speed", "25000\n");
  put("eth1/device/vendor", "0x15b3\n");
  put("eth0/speed", "100000\n");
  put("eth0/device/vendor", "0x15b3\n");
  put("eth2/speed", "-1\n");
  put("eth2/device/vendor", "0x8086\n");
  put("eth3/device/vendor", "0x8086\n");
  put("docker0/speed", "10000\n");
  const std::vector<NetworkCard> cards = network_cards(root_);
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_EQ(cards[0].name, "eth0");
  EXPECT_EQ(cards[0].bytes_per_second, 12.5e9);
  EXPECT_EQ(cards[1].name, "eth1");
  EXPECT_EQ(cards[1].bytes_per_second, 3.125e9);
  EXPECT_TRUE(network_cards(root_ / "none").empty());
}

TEST(MachineTest, ThisMachineIsAClusterThatTheReaderAccepts) {
  const Machine machine = detect_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_LE(machine.cores, ::sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_GT(machine.memory_bytes, 1e8);
  const Cluster cluster = default_cluster(machine);
  EXPECT_GE(cluster.workers.size(), 1U);
  const auto read = parse_cluster(to_yaml(cluster), "cluster.yaml");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, cluster);
}

TEST(MachineTest, GpusOfOneModelAreOneTypeAndAWorkerEach) {
  Machine machine;
  machine.gpus = {{"NVIDIA H200", 1.4e11}, {"NVIDIA H200", 1.4e11}, {"Tesla T4", 1.6e10}};
  const Cluster cluster = default_cluster(machine);
  ASSERT_NE(cluster.device_type("nvidia-h200"), nullptr);
  EXPECT_EQ(cluster.device_type("nvidia-h200")->count, 2);
  EXPECT_EQ(cluster.device_type("tesla-t4")->count, 1);
  EXPECT_EQ(cluster.workers.size(), 3U);
  EXPECT_EQ(*parse_cluster(to_yaml(cluster), "cluster.yaml"), cluster);
}

TEST(MachineTest, CpusAreADeviceForEachSoManyCores) {
  Machine machine;
  machine.cores = 8;
  machine.memory_bytes = 1e10;
  for (const auto& [threads, count] : {std::pair{3, 2}, {1, 8}, {16, 1}}) {
    Cluster cluster = default_cluster(machine);
    divide_cpu(machine, threads, cluster);
    EXPECT_EQ(cluster.device_type("cpu")->count, count);
    EXPECT_DOUBLE_EQ(cluster.device_type("cpu")->memory_bytes, 1e10 / count);
    EXPECT_EQ(cluster.nodes.front().devices.front().count, count);
  }
}

TEST(MachineTest, WhatIsMissingComesWithAdvice) {
  Machine machine;
  machine.memory_bytes = 1e6;
  const std::vector<CheckItem> items = check_machine(machine, "");
  for (const CheckItem& item : items) {
    EXPECT_TRUE(item.works || !item.advice.empty()) << item.name;
    EXPECT_FALSE(item.found.empty()) << item.name;
    if (item.name == "memory" || item.name == "libtorch" || item.name == "shared memory" || item.name == "GPU") {
      EXPECT_FALSE(item.works) << item.name;
    }
  }
  EXPECT_THAT(to_text(items), HasSubstr("libtorch            MISSING  not built in"));
}

}  // namespace
}  // namespace motley::cluster
