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

// What its owner commits is there for all who map it; a large region takes no more memory than that.
TEST(Region, IsBackedWhereItIsCommitted) {
  const std::string name = unique("uncommitted");
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  auto own = Region::create_uncommitted(name, kBytes);
  ASSERT_TRUE(own) << own.error().message;
  auto peers = Region::map_uncommitted(name, kBytes);
  ASSERT_TRUE(peers) << peers.error().message;
  (*own)->unlink();
  constexpr std::size_t kBegin = std::size_t{1} << 30;
  ASSERT_TRUE((*own)->commit(kBegin, 1 << 16));
  (*own)->data()[kBegin + 5] = std::byte{7};
  EXPECT_EQ((*peers)->data()[kBegin + 5], std::byte{7});
  EXPECT_EQ((*peers)->data()[kBegin + 6], std::byte{0});
  ASSERT_TRUE((*own)->commit(kBegin, 1 << 17));
  EXPECT_EQ((*peers)->data()[kBegin + 5], std::byte{7});
}

}  // namespace
}  // namespace motley::net
