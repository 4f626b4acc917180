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
