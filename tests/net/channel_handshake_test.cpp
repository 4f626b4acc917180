// How a channel begins, as a function of bytes: who gets in over TLS, what is refused and how that reads on both sides,
// and what an unauthenticated peer may make the other side hold.
#include "motley/net/channel_handshake.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "motley/base/random.h"
#include "tests/net/channel_pair.h"

namespace motley::net {
namespace {

using Role = Handshake::Role;
using Terms = ChannelHandshake::Terms;
using testing::HasSubstr;

Claim make_claim(int rank, const std::string& tenant = "local") {
  return {{.job = "job", .tenant = tenant, .rank = rank, .session = 7, .epoch = 2, .purpose = 1}, "f00d"};
}
const Terms kBetweenHosts = {Encryption::kAuto, false};
const Terms kOverLoopback = {Encryption::kAuto, true};

ChannelHandshake side(Role role, const Secret& secret, const Terms& terms = kBetweenHosts,
                      const std::string& tenant = "local") {
  return ChannelHandshake(
      role, [secret](const Claim&) { return secret; }, make_claim(role == Role::kConnector ? 2 : 0, tenant), anybody,
      terms);
}
const Secret kOne = *Secret::from_text("a secret of some length", "the file 'one'");
const Secret kOther = *Secret::from_text("another secret of some length", "the variable OTHER");

bool contains(const std::vector<std::byte>& bytes, std::string_view text) {
  return !std::ranges::search(bytes, std::as_bytes(std::span(text))).empty();
}

TEST(ChannelHandshake, EncryptsBetweenHostsAndNotOverLoopback) {
  for (const Terms& terms : {kBetweenHosts, kOverLoopback, Terms{Encryption::kOn, true}, Terms{Encryption::kOff}}) {
    ChannelHandshake connector = side(Role::kConnector, kOne, terms);
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne, terms);
    bool in_the_clear = false;
    const BothSides both = run(connector, acceptor, [&](bool, const std::vector<std::byte>& bytes) {
      in_the_clear = in_the_clear || contains(bytes, "f00d") || contains(bytes, "MTLH");
    });
    ASSERT_TRUE(both.connector && both.acceptor) << both.connector.error().message;
    EXPECT_TRUE(connector.done() && acceptor.done());
    EXPECT_EQ(acceptor.peer().identity.rank, 2);
    EXPECT_EQ(connector.peer().identity.rank, 0);
    const bool encrypts = terms.encryption.mode == Encryption::kOn ||
                          (terms.encryption.mode == Encryption::kAuto && !terms.over_loopback);
    EXPECT_EQ(in_the_clear, !encrypts);
    EXPECT_EQ(connector.take_tls() != nullptr, encrypts);
    EXPECT_EQ(acceptor.take_tls() != nullptr, encrypts);
  }
}

TEST(ChannelHandshake, AnotherSecretIsRefusedOnBothSides) {
  ChannelHandshake connector = side(Role::kConnector, kOne);
  ChannelHandshake acceptor = side(Role::kAcceptor, kOther);
  const BothSides both = run(connector, acceptor);
  for (const auto& [status, source] : {std::pair(both.connector, "the file 'one'"), {both.acceptor, "OTHER"}}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kRefused);
    EXPECT_THAT(status.error().message, HasSubstr("secret differs"));
    EXPECT_THAT(status.error().message, HasSubstr(source));
  }
  EXPECT_FALSE(acceptor.proved() || connector.proved());
}

// What somebody outside sees of a tenant that nobody knows is what is seen of a wrong secret.
TEST(ChannelHandshake, TheTenantChoosesTheSecretAndAnUnknownOneLooksLikeAWrongSecret) {
  const auto acceptor = [] {
    return ChannelHandshake(
        Role::kAcceptor,
        [](const Claim& peer) {
          return peer.identity.tenant == "a" ? kOne : peer.identity.tenant == "b" ? kOther : Secret::generate();
        },
        make_claim(0), anybody, kBetweenHosts);
  };
  for (const auto& [tenant, secret] : {std::pair<std::string, const Secret&>("a", kOne), {"b", kOther}}) {
    ChannelHandshake connector = side(Role::kConnector, secret, kBetweenHosts, tenant);
    ChannelHandshake one = acceptor();
    const BothSides both = run(connector, one);
    EXPECT_TRUE(both.connector && both.acceptor) << tenant;
  }
  std::vector<std::vector<std::byte>> answers;
  for (const char* tenant : {"b", "nobody"}) {
    ChannelHandshake connector = side(Role::kConnector, kOne, kBetweenHosts, tenant);
    ChannelHandshake one = acceptor();
    const BothSides both = run(connector, one, [&](bool from_connector, const std::vector<std::byte>& bytes) {
      if (!from_connector) answers.push_back(bytes);
    });
    ASSERT_FALSE(both.connector.has_value() || both.acceptor.has_value());
    EXPECT_THAT(both.connector.error().message, HasSubstr("secret differs"));
  }
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(ChannelHandshake, SidesThatAreSetDifferentlySayWhatToSetWhere) {
  struct Case {
    Terms connector;
    Terms acceptor;
    const char* connector_says;
    const char* acceptor_says;
  };
  for (const Case& it :
       {Case{{Encryption::kOff}, kBetweenHosts, "'on' here", "from another host: set encryption to 'on' there"},
        Case{{Encryption::kOff}, {Encryption::kOn}, "'on' here", "in the clear: set encryption to 'on' there"},
        Case{kOverLoopback, {Encryption::kOn, true}, "'on' here", "'on' there"},
        Case{{Encryption::kOn}, {Encryption::kOff}, "'off' at the peer", "'off' here"},
        Case{kBetweenHosts, {Encryption::kOff}, "'auto' there", "'auto' here"}}) {
    ChannelHandshake connector = side(Role::kConnector, kOne, it.connector);
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne, it.acceptor);
    const BothSides both = run(connector, acceptor);
    for (const auto& [status, says] :
         {std::pair(both.connector, it.connector_says), {both.acceptor, it.acceptor_says}}) {
      ASSERT_FALSE(status.has_value());
      EXPECT_EQ(status.error().code, ErrorCode::kRefused);
      EXPECT_THAT(status.error().message, HasSubstr(says));
      EXPECT_THAT(status.error().message, HasSubstr("network.encryption"));
    }
  }
  // Encrypted over loopback is more than is asked for.
  ChannelHandshake connector = side(Role::kConnector, kOne, {Encryption::kOn, true});
  ChannelHandshake acceptor = side(Role::kAcceptor, kOne, kOverLoopback);
  const BothSides both = run(connector, acceptor);
  EXPECT_TRUE(both.connector && both.acceptor);
}

// One who knows the secret of a tenant and answers in the place of the server has a TLS connection with each side. The
// proofs that are passed on are bound to another connection.
TEST(ChannelHandshake, ProofsThatARelayPassesOnAreRefused) {
  std::array<std::vector<std::byte>, 2> bindings = {std::vector<std::byte>(32, std::byte{1}),
                                                    std::vector<std::byte>(32, std::byte{2})};
  for (const bool same : {true, false}) {
    Handshake connector(Role::kConnector, kOne, make_claim(2), anybody, bindings[0]);
    Handshake acceptor(Role::kAcceptor, kOne, make_claim(0), anybody, bindings[same ? 0 : 1]);
    const auto pass = [](Handshake& from, Handshake& to) {
      const auto bytes = from.take_output();
      for (std::size_t at = 0; at < bytes.size();) {
        const std::size_t wanted = to.wanted();
        if (const Status fed = to.feed(std::span(bytes).subspan(at, wanted)); !fed) return fed;
        at += wanted;
      }
      return Status();
    };
    ASSERT_TRUE(pass(connector, acceptor));
    ASSERT_TRUE(pass(acceptor, connector));
    EXPECT_EQ(pass(connector, acceptor).has_value(), same);
    EXPECT_EQ(pass(acceptor, connector).has_value(), same);
    EXPECT_EQ(acceptor.proved(), same);
    EXPECT_EQ(connector.proved(), same);
  }
}

TEST(ChannelHandshake, EachConnectionIsBoundToItself) {
  const auto exporters = [] {
    ChannelHandshake connector = side(Role::kConnector, kOne);
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne);
    run(connector, acceptor);
    return std::pair(connector.take_tls()->exporter(), acceptor.take_tls()->exporter());
  };
  const auto first = exporters();
  const auto second = exporters();
  EXPECT_EQ(first.first, first.second);
  EXPECT_NE(first.first, second.first);
}

// psk_ke, which has no Diffie-Hellman keys, and older versions: whatever the connector offers less of is refused.
TEST(ChannelHandshake, ADowngradeOfTheOfferIsRefused) {
  const auto spoil = [](const std::vector<std::byte>& from, const std::vector<std::byte>& to) {
    ChannelHandshake connector = side(Role::kConnector, kOne);
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne);
    bool found = false;
    const BothSides both = run(connector, acceptor, [&](bool from_connector, std::vector<std::byte>& bytes) {
      const auto at = std::ranges::search(bytes, from);
      if (!from_connector || at.empty() || found) return;
      found = true;
      std::ranges::copy(to, at.begin());
    });
    EXPECT_TRUE(found);
    EXPECT_FALSE(both.acceptor.has_value());
    EXPECT_FALSE(acceptor.done() || connector.done());
  };
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> made;
    for (const int value : values) made.push_back(static_cast<std::byte>(value));
    return made;
  };
  spoil(bytes({0x00, 0x2d, 0x00, 0x02, 0x01, 0x01}), bytes({0x00, 0x2d, 0x00, 0x02, 0x01, 0x00}));  // psk_ke
  spoil(bytes({0x00, 0x2b, 0x00, 0x03, 0x02, 0x03, 0x04}), bytes({0x00, 0x2b, 0x00, 0x03, 0x02, 0x03, 0x03}));  // 1.2
}

TEST(ChannelHandshake, EveryFlippedByteIsRefused) {
  // Of the connector's and the acceptor's messages, counted on.
  for (std::size_t flipped = 0;; ++flipped) {
    ChannelHandshake connector = side(Role::kConnector, kOne);
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne);
    std::size_t passed = 0;
    bool ignored = false;  // the version in a record's header, which stands there for the machines between
    const BothSides both = run(connector, acceptor, [&](bool, std::vector<std::byte>& bytes) {
      if (flipped >= passed && flipped < passed + bytes.size()) bytes[flipped - passed] ^= std::byte{0x55};
      ignored = ignored || flipped == passed + 2;
      passed += bytes.size();
    });
    if (flipped >= passed) break;
    EXPECT_FALSE(connector.done() && acceptor.done() && both.connector && both.acceptor && !ignored)
        << "byte " << flipped;
  }
}

TEST(ChannelHandshake, GarbageAndFloodsAreBounded) {
  Random random(5);
  for (int round = 0; round < 2000; ++round) {
    ChannelHandshake acceptor = side(Role::kAcceptor, kOne, {Encryption::kAuto, random.below(2) == 0});
    std::size_t fed = 0;
    Status status;
    bool first = true;
    while (status && !acceptor.done()) {
      ASSERT_LE(acceptor.wanted(), 4096u);
      std::vector<std::byte> bytes(acceptor.wanted());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      // Records that are well-formed outside, so that more than the first bytes is read.
      if (bytes.size() == kTlsHeaderBytes && (first || random.below(8) != 0)) {
        bytes = {std::byte{0x16}, std::byte{3}, std::byte{3}, std::byte{0},
                 static_cast<std::byte>(1 + random.below(255))};
        if (first && random.below(4) == 0) bytes[0] = std::byte{'M'};
      }
      first = false;
      fed += bytes.size();
      status = acceptor.feed(bytes);
      ASSERT_LE(fed, std::size_t{20} << 10);
    }
    EXPECT_FALSE(acceptor.proved());
  }
}

// A peer that is let in may change its key from time to time, and not again and again.
TEST(ChannelHandshake, AFloodOfKeyChangesEndsTheConnection) {
  ChannelHandshake connector = side(Role::kConnector, kOne);
  ChannelHandshake acceptor = side(Role::kAcceptor, kOne);
  run(connector, acceptor);
  const auto sender = connector.take_tls();
  const auto receiver = acceptor.take_tls();
  const std::vector<std::byte> word(5, std::byte{7});
  const auto pass = [&]() -> Result<std::size_t> {
    MOTLEY_TRY(sender->write(word));
    const std::vector<std::byte> bytes(sender->output().begin(), sender->output().end());
    sender->sent(bytes.size());
    MOTLEY_TRY(receiver->feed(bytes));
    std::vector<std::byte> got(word.size());
    return receiver->read(got);
  };
  for (int change = 0; change < 3; ++change) {
    ASSERT_EQ(pass().value_or(0), word.size());
    sender->change_key();
  }
  ASSERT_EQ(pass().value_or(0), word.size());
  Result<std::size_t> got = 0;
  int changes = 3;
  for (; got && changes < 100; ++changes) {
    sender->change_key();
    got = pass();
  }
  EXPECT_LT(changes, 100);
  ASSERT_FALSE(got.has_value());
  EXPECT_THAT(got.error().message, HasSubstr("changes its key"));
}

}  // namespace
}  // namespace motley::net
