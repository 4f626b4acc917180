// Shared memory: seen by both mappings, refused where it does not fit, and gone afterwards.
#include "motley/net/region.h"

#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>

namespace motley::net {
namespace {

std::string unique(const char* word) {
  return std::string("test-") + word + "-" + std::to_string(::getpid());
}

TEST(Region, IsSharedAndLeavesNothing) {
  const std::string name = unique("share");
  auto owner = Region::create(name, 10000);
  ASSERT_TRUE(owner.has_value()) << owner.error().message;
  EXPECT_GE((*owner)->size(), 10000U);
  EXPECT_EQ((*owner)->data()[9999], std::byte{0});
  EXPECT_FALSE(Region::create(name, 10000).has_value());
  auto peer = Region::map(name, 10000);
  ASSERT_TRUE(peer.has_value()) << peer.error().message;
  (*owner)->unlink();
  (*owner)->unlink();
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/motley-" + name));
  *(*owner)->at<int>(64) = 42;
  EXPECT_EQ(*(*peer)->at<int>(64), 42);
  EXPECT_FALSE(Region::map(name, 1).has_value());
}

TEST(Region, RefusesMoreThanThePeerMade) {
  const std::string name = unique("small");
  auto owner = Region::create(name, 4096);
  ASSERT_TRUE(owner.has_value());
  const auto peer = Region::map(name, 1 << 20);
  ASSERT_FALSE(peer.has_value());
  EXPECT_NE(peer.error().message.find("4096"), std::string::npos);
  owner->reset();
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/motley-" + name));
}

TEST(Region, FullMemoryIsAnError) {
  struct statvfs space{};
  ASSERT_EQ(::statvfs("/dev/shm", &space), 0);
  const std::string name = unique("full");
  const auto region = Region::create(name, (space.f_blocks + 1000) * space.f_frsize);
  ASSERT_FALSE(region.has_value());
  EXPECT_NE(region.error().message.find("/dev/shm"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/motley-" + name));
}

}  // namespace
}  // namespace motley::net
