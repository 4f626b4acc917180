// What every Connection must do, in the clear and over TLS: over frames of random sizes, both directions at once, with
// progress in random turns.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include "motley/base/random.h"
#include "motley/net/connection.h"
#include "motley/net/lingering_connections.h"
#include "motley/net/socket.h"
#include "motley/net/wait_set.h"
#include "tests/net/channel_pair.h"

namespace motley::net {
namespace {

enum class Kind { kPlain, kChecked, kEncrypted };

struct Pair {
  std::unique_ptr<Connection> a;
  std::unique_ptr<Connection> b;
  int raw = -1;  // b's descriptor
};

std::pair<Channel, Channel> encrypt(Descriptor a, Descriptor b) {
  const auto side = [](Handshake::Role role) {
    return ChannelHandshake(
        role, [](const Claim&) { return *Secret::from_text("a secret of some length", "it"); }, Claim{},
        [](const Claim&) { return Status(); }, {Encryption::kOn, true});
  };
  ChannelHandshake connector = side(Handshake::Role::kConnector);
  ChannelHandshake acceptor = side(Handshake::Role::kAcceptor);
  const BothSides both = run(connector, acceptor);
  EXPECT_TRUE(both.connector && both.acceptor);
  return {Channel(std::move(a), connector.take_tls()), Channel(std::move(b), acceptor.take_tls())};
}

Pair make_pair(Kind kind, std::uint64_t epoch_of_b = 1) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const auto identity = [](int rank, std::uint64_t epoch) {
    return Identity{.job = "j", .tenant = "t", .rank = rank, .session = 9, .epoch = epoch, .purpose = 0};
  };
  const bool checksum = kind != Kind::kPlain;
  auto [a, b] = kind == Kind::kEncrypted ? encrypt(Descriptor(ends[0]), Descriptor(ends[1]))
                                         : std::pair<Channel, Channel>(Descriptor(ends[0]), Descriptor(ends[1]));
  return {std::make_unique<Connection>(std::move(a), identity(1, 1), checksum),
          std::make_unique<Connection>(std::move(b), identity(0, epoch_of_b), checksum), ends[1]};
}

class ConnectionTest : public testing::TestWithParam<Kind> {};

TEST_P(ConnectionTest, CarriesRandomFramesBothWays) {
  Random random(3);
  for (int round = 0; round < 4; ++round) {
    Pair pair = make_pair(GetParam());
    std::vector<std::vector<std::byte>> sent[2];
    std::vector<std::vector<std::byte>> got[2];
    for (int way = 0; way < 2; ++way) {
      for (int i = 0; i < 12; ++i) {
        const std::size_t size = i % 4 == 0 ? 0 : random.below(i == 5 ? 8 << 20 : i % 2 ? 300 : 200000);
        auto& payload = sent[way].emplace_back(size);
        for (auto& byte : payload) {
          byte = static_cast<std::byte>(random.next());
        }
        got[way].emplace_back(size);
      }
    }
    Connection* ends[2] = {pair.a.get(), pair.b.get()};
    std::size_t posted[4] = {};
    for (bool busy = true; busy;) {
      const std::size_t way = random.below(2);
      if (posted[way] < sent[way].size() && random.below(3) == 0) {
        ends[way]->post_send(4, posted[way], sent[way][posted[way]]);
        ++posted[way];
      }
      auto& receiving = posted[2 + way];
      if (receiving < got[way].size() && random.below(3) == 0) {
        ends[1 - way]->post_receive(4, receiving, got[way][receiving]);
        ++receiving;
      }
      const auto moved = ends[random.below(2)]->progress();
      ASSERT_TRUE(moved.has_value()) << moved.error().message;
      busy = posted[0] < 12 || posted[1] < 12 || posted[2] < 12 || posted[3] < 12 || ends[0]->pending_sends() ||
             ends[1]->pending_sends() || ends[0]->pending_receives() || ends[1]->pending_receives();
    }
    EXPECT_TRUE(sent[0] == got[0]);
    EXPECT_TRUE(sent[1] == got[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ConnectionTest, testing::Values(Kind::kPlain, Kind::kChecked, Kind::kEncrypted));

TEST_P(ConnectionTest, BlockingMessagesAndTimeout) {
  Pair pair = make_pair(GetParam());
  const std::vector<std::byte> payload(1000, std::byte{7});
  ASSERT_TRUE(pair.a->send(3, 4, payload, Deadline::after(5), "it"));
  const auto message = pair.b->receive(Deadline::after(5), "it");
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->header.tag, 4U);
  EXPECT_EQ(message->payload, payload);
  const auto nothing = pair.b->receive(Deadline::after(0.01), "the shares of step 12");
  ASSERT_FALSE(nothing.has_value());
  EXPECT_EQ(nothing.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(nothing.error().rank, 0);
  EXPECT_NE(nothing.error().message.find("the shares of step 12"), std::string::npos);
}

TEST_P(ConnectionTest, AReceiveThatTimedOutInAFrameGoesOnWithIt) {
  Pair pair = make_pair(GetParam());
  std::vector<std::byte> payload(900'000);
  for (std::size_t i = 0; i < payload.size(); ++i) {
    payload[i] = static_cast<std::byte>(i * 7);
  }
  pair.a->post_send(3, 4, payload);
  ASSERT_TRUE(pair.a->progress());  // as much as the socket takes, which is not all
  ASSERT_EQ(pair.a->pending_sends(), 1U);
  const auto early = pair.b->receive(Deadline::after(0), "it");
  ASSERT_FALSE(early.has_value());
  EXPECT_EQ(early.error().code, ErrorCode::kTimeout);
  EXPECT_NE(early.error().message.find("only a part"), std::string::npos) << early.error().message;
  for (;;) {
    ASSERT_TRUE(pair.a->progress());
    const auto message = pair.b->receive(Deadline::after(0), "it");
    if (message) {
      EXPECT_EQ(message->payload, payload);
      return;
    }
    ASSERT_EQ(message.error().code, ErrorCode::kTimeout) << message.error().message;
  }
}

TEST_P(ConnectionTest, MismatchNamesBothSides) {
  Pair pair = make_pair(GetParam());
  std::vector<std::byte> payload(100);
  std::vector<std::byte> into(50);
  ASSERT_TRUE(pair.a->send(3, 4, payload, Deadline::after(5), "it"));
  pair.b->post_receive(3, 4, into);
  const auto moved = pair.b->progress();
  ASSERT_FALSE(moved.has_value());
  EXPECT_NE(moved.error().message.find("100 bytes"), std::string::npos);
  EXPECT_NE(moved.error().message.find("50 bytes"), std::string::npos);
}

TEST(Connection, RefusesAStaleEpochAnOversizedFrameAndADamagedPayload) {
  {
    Pair pair = make_pair(Kind::kChecked, 2);
    ASSERT_TRUE(pair.a->send(3, 4, {}, Deadline::after(5), "it"));
    const auto got = pair.b->receive(Deadline::after(5), "it");
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code, ErrorCode::kRefused);
  }
  const auto push = [](Pair& pair, const Frame& frame, std::size_t extra) {
    const FrameBytes header = encode_frame(frame);
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.resize(bytes.size() + extra);
    // Written from b's end, so that a reads it.
    EXPECT_EQ(::send(pair.raw, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return pair.a->receive(Deadline::after(5), "it");
  };
  {
    Pair pair = make_pair(Kind::kChecked);
    const auto got = push(pair, {.session = 9, .epoch = 1, .length = std::uint64_t{1} << 60}, 0);
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
  }
  {
    Pair pair = make_pair(Kind::kChecked);
    const auto got =
        push(pair, {.has_payload_checksum = true, .payload_checksum = 1, .session = 9, .epoch = 1, .length = 8}, 8);
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
  }
}

TEST_P(ConnectionTest, TheEndOfTheStreamComesAfterAllThatWasSent) {
  Pair pair = make_pair(GetParam());
  const std::vector<std::byte> payload(1000, std::byte{7});
  ASSERT_TRUE(pair.b->send(3, 4, payload, Deadline::after(5), "it"));
  pair.b->finish_sending();
  EXPECT_EQ(pair.a->receive(Deadline::after(5), "it")->payload, payload);
  // The other direction is still open.
  ASSERT_TRUE(pair.a->send(3, 5, payload, Deadline::after(5), "it"));
  EXPECT_EQ(pair.b->receive(Deadline::after(5), "it")->payload, payload);
  const auto got = pair.a->receive(Deadline::after(5), "it");
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(got.error().rank, 1);
  EXPECT_NE(got.error().message.find("closed its connection"), std::string::npos);
}

TEST_P(ConnectionTest, APeerWhoseProcessEndsIsLost) {
  Pair pair = make_pair(GetParam());
  ASSERT_EQ(::shutdown(pair.raw, SHUT_RDWR), 0);  // as the system does for a process that was killed
  for (int again = 0; again < 2; ++again) {
    const auto got = pair.a->receive(Deadline::after(5), "it");
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code, ErrorCode::kPeerLost);
    EXPECT_EQ(got.error().rank, 1);
    EXPECT_EQ(got.error().message.find("cut off") != std::string::npos, GetParam() == Kind::kEncrypted);
  }
}

TEST_P(ConnectionTest, APeerThatDoesNotReadHoldsUpOnlyItsOwnFrames) {
  Pair pair = make_pair(GetParam());
  const std::vector<std::byte> payload(32 << 20, std::byte{7});
  std::vector<std::byte> into(payload.size());
  pair.a->post_send(3, 4, payload);
  while (*pair.a->progress()) continue;
  EXPECT_EQ(pair.a->pending_sends(), 1u);
  EXPECT_TRUE(pair.a->wants_to_write());
  EXPECT_LT(pair.a->bytes_sent(), payload.size());
  // The other direction is free.
  ASSERT_TRUE(pair.b->send(3, 5, std::span(payload).first(100), Deadline::after(5), "it"));
  EXPECT_EQ(pair.a->receive(Deadline::after(5), "it")->payload.size(), 100u);
  pair.b->post_receive(3, 4, into);
  while (pair.b->pending_receives() > 0) {
    ASSERT_TRUE(pair.a->progress());
    ASSERT_TRUE(pair.b->progress());
  }
  EXPECT_FALSE(pair.a->wants_to_write());
  EXPECT_EQ(pair.a->bytes_sent(), kFrameBytes + payload.size());
  EXPECT_EQ(into, payload);
}

// Also of the last one, where TLS has taken all of it and the socket a part. Whoever waits for the pending sends alone
// sends it all.
TEST_P(ConnectionTest, AFrameIsPendingUntilTheSocketHasIt) {
  for (const std::size_t size : {100'000, 300'000, 1'000'000, 3'000'000}) {
    Pair pair = make_pair(GetParam());
    const std::vector<std::byte> payload(size, std::byte{7});
    std::vector<std::byte> into(payload.size());
    pair.a->post_send(3, 4, payload);
    pair.b->post_receive(3, 4, into);
    while (*pair.a->progress()) continue;
    while (pair.a->pending_sends() > 0) {
      // What is here by now is read, and no more is sent meanwhile.
      while (*pair.b->progress()) continue;
      ASSERT_TRUE(pair.a->progress());
    }
    EXPECT_FALSE(pair.a->wants_to_write());
    while (*pair.b->progress()) continue;
    EXPECT_EQ(pair.b->pending_receives(), 0u);
    EXPECT_EQ(into, payload);
  }
}

// What TLS has read ahead does not wake a poll of the socket.
TEST_P(ConnectionTest, AWaitEndsForFramesThatHaveLeftTheSocket) {
  Pair pair = make_pair(GetParam());
  WaitSet waits;
  const std::vector<std::byte> payload(10, std::byte{7});
  for (int frame = 0; frame < 3; ++frame) pair.b->post_send(3, 4, payload);
  ASSERT_TRUE(pair.b->flush(Deadline::after(5), "it"));
  for (int frame = 0; frame < 3; ++frame) {
    waits.add(*pair.a);
    waits.wait();  // without an end
    ASSERT_TRUE(pair.a->try_receive().value());
  }
  ASSERT_FALSE(pair.a->try_receive().value());
  EXPECT_FALSE(pair.a->has_input());
}

TEST_P(ConnectionTest, OneThatLingersSaysAllAndClosesAfterTheOtherEnd) {
  Pair pair = make_pair(GetParam());
  const auto place = std::make_shared<int>();
  const std::vector<std::byte> payload(900'000, std::byte{7});  // more than the socket takes at once
  pair.b->keep(place);
  pair.b->post_owned(3, 4, payload);
  LingeringConnections lingering;
  lingering.add(std::move(pair.b), 60);
  for (;;) {
    lingering.step();
    const auto message = pair.a->receive(Deadline::after(0), "it");
    if (message) {
      EXPECT_EQ(message->payload, payload);
      break;
    }
    ASSERT_EQ(message.error().code, ErrorCode::kTimeout) << message.error().message;
  }
  lingering.step();
  const auto end = pair.a->receive(Deadline::after(5), "it");
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, ErrorCode::kPeerLost) << end.error().message;
  EXPECT_EQ(place.use_count(), 2);
  pair.a.reset();
  lingering.step();
  EXPECT_EQ(place.use_count(), 1);
}

TEST(Connection, OneThatLingersIsClosedWhenItsTimeHasPassed) {
  Pair pair = make_pair(Kind::kPlain);
  const auto place = std::make_shared<int>();
  pair.b->keep(place);
  pair.b->post_owned(3, 4, std::vector<std::byte>(900'000));
  LingeringConnections lingering;
  lingering.add(std::move(pair.b), 0);
  lingering.step();
  EXPECT_EQ(place.use_count(), 1);
}

std::pair<Descriptor, Descriptor> connect_over_tcp() {
  const auto listener = listen_at({"127.0.0.1", 0});
  auto connected = connect_to(local_endpoint(*listener), Deadline::after(5));
  EXPECT_TRUE(connected && wait_for(listener->get(), POLLIN, 5000));
  return {std::move(*connected), accept_from(*listener)};
}

// A filter that drops whatever comes does what a machine does that is gone.
TEST(Connection, IsUnansweredWhereThePeersMachineIsGone) {
  const Pair pair = make_pair(Kind::kPlain);
  EXPECT_FALSE(is_unanswered(pair.a->socket(), 0));
  pair.a->end_if_unanswered();
  EXPECT_TRUE(pair.a->progress());

  const auto [full, reads_nothing] = connect_over_tcp();
  const std::vector<std::byte> bytes(1 << 20);
  while (::send(full.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0) continue;
  EXPECT_FALSE(is_unanswered(full, 0));

  const auto [near, far] = connect_over_tcp();
  sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog filter = {1, &drop};
  if (::setsockopt(far.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0) {
    GTEST_SKIP() << "this machine has no filters of sockets";
  }
  ASSERT_EQ(::send(near.get(), bytes.data(), 1, MSG_NOSIGNAL), 1);
  for (const Deadline deadline = Deadline::after(20); !is_unanswered(near, 0) && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.005);
  }
  EXPECT_TRUE(is_unanswered(near, 0));
  EXPECT_FALSE(is_unanswered(near));  // not for so long
}

TEST(Connection, ADamagedRecordEndsTheConnection) {
  Pair pair = make_pair(Kind::kEncrypted);
  const std::array<std::byte, 40> bytes = {std::byte{0x17}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{35}};
  ASSERT_EQ(::send(pair.raw, bytes.data(), bytes.size(), 0), std::ssize(bytes));
  const auto got = pair.a->receive(Deadline::after(5), "it");
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace motley::net
