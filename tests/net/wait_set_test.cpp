// A wait ends for whatever comes first: a descriptor, a moment, another thread's word.
#include "motley/net/wait_set.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "motley/net/connection.h"

namespace motley::net {
namespace {

struct SocketPair {
  SocketPair() {
    std::array<int, 2> sockets{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()), 0);
    near = Descriptor(sockets[0]);
    far = Descriptor(sockets[1]);
  }
  Descriptor near;
  Descriptor far;
};

double seconds_of_wait(WaitSet& set) {
  const double begin = monotonic_seconds();
  set.wait();
  return monotonic_seconds() - begin;
}

TEST(WaitSet, EndsAtTheEarliestMoment) {
  WaitSet set;
  set.end_after(10);
  set.end_after(0.02);
  set.end_at(std::numeric_limits<double>::infinity());
  const double waited = seconds_of_wait(set);
  EXPECT_GE(waited, 0.02);
  EXPECT_LT(waited, 5);
  set.end_at(0);  // long ago
  EXPECT_LT(seconds_of_wait(set), 5);
}

TEST(WaitSet, IsWokenDuringTheWaitOrBeforeItOnce) {
  WaitSet set;
  std::thread other([&] { set.wake(); });
  EXPECT_TRUE(set.wait());
  other.join();
  set.wake();
  set.wake();
  set.end_after(10);
  EXPECT_TRUE(set.wait());
  set.end_after(0);
  EXPECT_FALSE(set.wait());
}

TEST(WaitSet, SaysWhatHappenedToADescriptorAndForgetsIt) {
  WaitSet set;
  const SocketPair pair;
  set.add(pair.near.get(), POLLIN);
  set.end_after(0);
  EXPECT_FALSE(set.wait());
  EXPECT_EQ(set.events(pair.near.get()), 0);

  ASSERT_EQ(::send(pair.far.get(), "x", 1, 0), 1);
  set.add(pair.near.get(), POLLIN);
  EXPECT_FALSE(set.wait());
  EXPECT_EQ(set.events(pair.near.get()), POLLIN);

  set.end_after(0.01);  // the byte is still there, and nobody asks for it
  EXPECT_GE(seconds_of_wait(set), 0.01);
  EXPECT_EQ(set.events(pair.near.get()), 0);
}

TEST(WaitSet, SeesTheOtherEndClose) {
  WaitSet set;
  SocketPair pair;
  pair.far.close();
  set.add(pair.near.get(), POLLRDHUP);
  EXPECT_FALSE(set.wait());
  EXPECT_NE(set.events(pair.near.get()) & (POLLHUP | POLLRDHUP), 0);
}

TEST(WaitSet, WaitsUntilAConnectionReadsOrTakesMore) {
  WaitSet set;
  SocketPair pair;
  ASSERT_EQ(::send(pair.far.get(), "x", 1, 0), 1);
  Connection connection(std::move(pair.near), Identity{}, false);
  set.add(connection);
  EXPECT_FALSE(set.wait());
  EXPECT_EQ(set.events(connection.descriptor()), POLLIN);

  set.add(connection, /*reads=*/false);
  set.end_after(0);
  EXPECT_FALSE(set.wait());
  EXPECT_EQ(set.events(connection.descriptor()), 0);

  connection.post_owned(1, 0, {});
  set.add(connection, /*reads=*/false);
  EXPECT_FALSE(set.wait());
  EXPECT_EQ(set.events(connection.descriptor()), POLLOUT);
}

}  // namespace
}  // namespace motley::net
