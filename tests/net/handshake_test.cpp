// The handshake as a function of bytes: two sides with one secret agree, and nothing else gets in.
#include "motley/net/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "motley/net/connection.h"

namespace motley::net {
namespace {

using Role = Handshake::Role;

Claim claim(int rank, const std::string& fingerprint = "f00d") {
  return {{.job = "job", .tenant = "local", .rank = rank, .session = 7, .epoch = 2, .purpose = 1}, fingerprint};
}

Handshake side(Role role, const Secret& secret, const Claim& own) {
  return Handshake(role, secret, own, [own](const Claim& peer) { return check_same_job(own, peer); });
}

// Feeds all of `bytes`, as many at a time as are wanted.
Status feed_all(Handshake& handshake, const std::vector<std::byte>& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = std::min(handshake.wanted(), bytes.size() - at);
    if (size < handshake.wanted()) {
      return fail(ErrorCode::kCorrupt, "short");
    }
    MOTLEY_TRY(handshake.feed(std::span(bytes).subspan(at, size)));
    at += size;
  }
  return {};
}

struct Outcome {
  Status connector;
  Status acceptor;
};
Outcome run(Handshake& connector, Handshake& acceptor) {
  Outcome outcome;
  outcome.acceptor = feed_all(acceptor, connector.take_output());
  outcome.connector = feed_all(connector, acceptor.take_output());
  if (outcome.connector && outcome.acceptor) {
    outcome.acceptor = feed_all(acceptor, connector.take_output());
    outcome.connector = feed_all(connector, acceptor.take_output());
  }
  return outcome;
}

TEST(Handshake, SameSecretAgrees) {
  const Secret secret = Secret::generate();
  Handshake connector = side(Role::kConnector, secret, claim(2));
  Handshake acceptor = side(Role::kAcceptor, secret, claim(0));
  const Outcome outcome = run(connector, acceptor);
  EXPECT_TRUE(outcome.connector && outcome.acceptor);
  EXPECT_TRUE(connector.done() && acceptor.done());
  EXPECT_EQ(acceptor.peer().identity.rank, 2);
  EXPECT_EQ(connector.peer().identity.rank, 0);
}

TEST(Handshake, AnotherSecretIsRefusedOnBothSides) {
  const Secret one = *Secret::from_text("a secret of some length", "the file 'one'");
  const Secret other = *Secret::from_text("another secret of some length", "the variable OTHER");
  Handshake connector = side(Role::kConnector, one, claim(2));
  Handshake acceptor = side(Role::kAcceptor, other, claim(0));
  const Outcome outcome = run(connector, acceptor);
  EXPECT_NE(outcome.connector.error().message.find("the file 'one'"), std::string::npos);
  EXPECT_NE(outcome.acceptor.error().message.find("the variable OTHER"), std::string::npos);
  for (const Status& status : {outcome.connector, outcome.acceptor}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kRefused);
    EXPECT_NE(status.error().message.find("secret differs"), std::string::npos);
  }
  EXPECT_FALSE(acceptor.proved() || connector.proved());
}

TEST(Handshake, AnotherFingerprintIsRefusedOnBothSidesWithBothValues) {
  const Secret secret = Secret::generate();
  Handshake connector = side(Role::kConnector, secret, claim(2, "beef"));
  Handshake acceptor = side(Role::kAcceptor, secret, claim(0, "f00d"));
  const Outcome outcome = run(connector, acceptor);
  for (const Status& status : {outcome.connector, outcome.acceptor}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kRefused);
    EXPECT_NE(status.error().message.find("beef"), std::string::npos);
    EXPECT_NE(status.error().message.find("f00d"), std::string::npos);
  }
}

TEST(Handshake, LongFingerprintsAreComparedToTheirEnd) {
  const Secret secret = Secret::generate();
  const std::string beginning = "name=" + std::string(900, 'a') + "; seed=";
  Handshake connector = side(Role::kConnector, secret, claim(2, beginning + "7"));
  Handshake acceptor = side(Role::kAcceptor, secret, claim(0, beginning + "8"));
  const Outcome outcome = run(connector, acceptor);
  for (const Status& status : {outcome.connector, outcome.acceptor}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("rank 2 has seed '7', rank 0 has '8';"), std::string::npos)
        << status.error().message;
  }
}

TEST(Handshake, TheKeysThatDifferAreNamedWithBothValues) {
  const auto difference = [](const std::string& own, const std::string& peer) {
    const Status same = check_same_job(claim(0, own), claim(1, peer));
    return same ? "" : same.error().message;
  };
  EXPECT_EQ(difference("seed=7; steps=9", "steps=9; seed=7"), "");
  EXPECT_EQ(difference("seed=7; steps=9", "seed=8; steps=9"),
            "rank 1 has seed '8', rank 0 has '7'; all ranks must be started for the same job");
  EXPECT_EQ(difference("a=1", "b=2"),
            "rank 1 has a its default, rank 0 has '1'; rank 1 has b '2', rank 0 has its default; all ranks must be "
            "started for the same job");
  EXPECT_EQ(difference("", "a=; b==; c=3; d=4"),  // three of them are enough
            "rank 1 has a '', rank 0 has its default; rank 1 has b '=', rank 0 has its default; rank 1 has c '3', rank "
            "0 has its default; all ranks must be started for the same job");
  EXPECT_EQ(difference("beef", "f00d"),
            "rank 1 has fingerprint 'f00d', rank 0 has 'beef'; all ranks must be started for the same job");
}

TEST(Handshake, AnotherVersionIsNamedOnBothSides) {
  const Secret secret = Secret::generate();
  Handshake connector = side(Role::kConnector, secret, claim(2));
  Handshake acceptor = side(Role::kAcceptor, secret, claim(0));
  auto hello = connector.take_output();
  hello[4] ^= std::byte{0x40};  // the version's low byte, behind the magic
  const Status refused = feed_all(acceptor, hello);
  auto answer = acceptor.take_output();
  ASSERT_GE(answer.size(), kHandshakeHeaderBytes);
  answer[4] ^= std::byte{0x40};  // as the connector of that version sees it
  for (const Status& status : {refused, feed_all(connector, answer)}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kRefused);
    EXPECT_NE(status.error().message.find("protocol version"), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find(std::to_string(kProtocolVersion ^ 0x40)), std::string::npos);
  }
}

// Names that look alike on a terminal, or are no text, are refused as they come, and shown so that they can be told
// apart.
TEST(Handshake, NamesThatAreNoPlainTextAreRefusedAndShownEscaped) {
  const Secret secret = Secret::generate();
  for (const auto& [name, shown] :
       {std::pair("job\x01", "job\\x01"), std::pair("job\xff", "job\\xff"), std::pair("\x1b[2Jjob", "\\x1b[2Jjob"),
        std::pair("job\xc2\x9b", "job\\xc2\\x9b")}) {
    Claim strange = claim(2);
    strange.identity.job = name;
    Handshake connector = side(Role::kConnector, secret, strange);
    Handshake acceptor = side(Role::kAcceptor, secret, claim(0));
    const Outcome outcome = run(connector, acceptor);
    ASSERT_FALSE(outcome.acceptor.has_value());
    EXPECT_EQ(outcome.acceptor.error().code, ErrorCode::kRefused);
    EXPECT_NE(outcome.acceptor.error().message.find(fmt::format("the job '{}'", shown)), std::string::npos)
        << outcome.acceptor.error().message;
    EXPECT_FALSE(acceptor.proved());
  }
}

TEST(Handshake, ReplayedAndReflectedMessagesAreRefused) {
  const Secret secret = Secret::generate();
  Handshake connector = side(Role::kConnector, secret, claim(2));
  Handshake acceptor = side(Role::kAcceptor, secret, claim(0));
  const auto hello = connector.take_output();
  ASSERT_TRUE(feed_all(acceptor, hello));
  ASSERT_TRUE(feed_all(connector, acceptor.take_output()));
  const auto proof = connector.take_output();
  ASSERT_TRUE(feed_all(acceptor, proof));

  Handshake later = side(Role::kAcceptor, secret, claim(0));
  ASSERT_TRUE(feed_all(later, hello));
  EXPECT_FALSE(feed_all(later, proof).has_value());
  EXPECT_FALSE(later.proved());

  Handshake mirror = side(Role::kConnector, secret, claim(2));
  EXPECT_FALSE(feed_all(mirror, mirror.take_output()).has_value());
}

TEST(Handshake, EveryFlippedBitIsRefused) {
  const Secret secret = Secret::generate();
  for (std::size_t bit = 0;; ++bit) {
    Handshake connector = side(Role::kConnector, secret, claim(2));
    Handshake acceptor = side(Role::kAcceptor, secret, claim(0));
    auto hello = connector.take_output();
    if (bit >= 8 * hello.size()) {
      break;
    }
    hello[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    Status status = feed_all(acceptor, hello);
    if (status) {
      status = feed_all(connector, acceptor.take_output());
    }
    if (status) {
      status = feed_all(acceptor, connector.take_output());
    }
    EXPECT_FALSE(status.has_value() && acceptor.done()) << "bit " << bit;
  }
}

}  // namespace
}  // namespace motley::net
