// Shared memory: seen by both mappings, also of another process, refused where it does not fit or is not what its
// address says, and without a name that could be left behind.
#include "motley/net/region.h"

#include <gmock/gmock.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace motley::net {
namespace {

using ::testing::HasSubstr;

bool has_name(const RegionAddress& address) {
  const auto file = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(address.descriptor)).string();
  return !file.ends_with(" (deleted)");
}

TEST(Region, IsSharedAndHasNoName) {
  const auto owner = Region::create(10000);
  ASSERT_TRUE(owner) << owner.error().message;
  EXPECT_GE((*owner)->size(), 10000U);
  EXPECT_EQ((*owner)->data()[9999], std::byte{0});
  EXPECT_FALSE(has_name((*owner)->address()));
  const auto peer = Region::map((*owner)->address(), 10000);
  ASSERT_TRUE(peer) << peer.error().message;
  *(*owner)->at<int>(64) = 42;
  EXPECT_EQ(*(*peer)->at<int>(64), 42);
}

TEST(Region, IsMappedByAnotherProcess) {
  const auto owner = Region::create(4096);
  ASSERT_TRUE(owner) << owner.error().message;
  const pid_t child = ::fork();
  if (child == 0) {
    const auto peer = Region::map((*owner)->address(), 4096);
    if (peer) *(*peer)->at<int>(0) = 7;
    ::_exit(peer ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*(*owner)->at<int>(0), 7);
}

TEST(Region, OutlivesItsOwnerWhereItIsMappedAndIsNotFoundAfterwards) {
  auto owner = Region::create(4096);
  ASSERT_TRUE(owner);
  const RegionAddress address = (*owner)->address();
  const auto peer = Region::map(address, 4096);
  ASSERT_TRUE(peer);
  owner->reset();
  *(*peer)->at<int>(0) = 1;
  EXPECT_FALSE(Region::map(address, 4096));
  const auto other = Region::create(4096);  // most likely under the same descriptor
  ASSERT_TRUE(other);
  EXPECT_FALSE(Region::map(address, 4096));
}

TEST(Region, RefusesMoreThanThePeerMade) {
  const auto owner = Region::create(4096);
  ASSERT_TRUE(owner);
  const auto peer = Region::map((*owner)->address(), 1 << 20);
  ASSERT_FALSE(peer);
  EXPECT_THAT(peer.error().message, HasSubstr("has 4096 bytes; 1048576 are wanted"));
}

TEST(Region, RefusesWhatIsNoMemory) {
  EXPECT_FALSE(Region::map({}, 1));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto pipe = Region::map({::getpid(), ends[0], 0}, 1);
  ASSERT_FALSE(pipe);
  EXPECT_THAT(pipe.error().message, HasSubstr("is there no more"));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Region, FullMemoryIsAnError) {
  struct statvfs space{};
  ASSERT_EQ(::statvfs("/dev/shm", &space), 0);
  const auto region = Region::create((space.f_blocks + 1000) * space.f_frsize);
  ASSERT_FALSE(region);
  EXPECT_THAT(region.error().message, HasSubstr("/dev/shm"));
}

// What its owner commits is there for all who map it; a large region takes no more memory than that.
TEST(Region, IsBackedWhereItIsCommitted) {
  constexpr std::size_t kBytes = std::size_t{1} << 36;
  const auto own = Region::create_uncommitted(kBytes);
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_FALSE(has_name((*own)->address()));
  const auto peers = Region::map_uncommitted((*own)->address(), kBytes);
  ASSERT_TRUE(peers) << peers.error().message;
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
