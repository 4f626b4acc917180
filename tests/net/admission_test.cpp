// Whoever listens is open to peers that prove nothing: how many of them, for how long, and what they can make it log.
#include "motley/net/admission.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/socket.h>

#include <regex>
#include <sstream>

#include "motley/base/log.h"
#include "motley/net/socket.h"
#include "tests/net/channel_pair.h"

namespace motley::net {
namespace {

constexpr std::size_t kMaxPending = 256;

// The lines that are logged while it lives.
class LoggedLines {
 public:
  LoggedLines() {
    auto logger = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_pattern("%v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~LoggedLines() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream text_;
};

class AcceptorTest : public ::testing::Test {
 protected:
  AcceptorTest() {
    auto listener = *listen_at({"127.0.0.1", 0});
    where_ = local_endpoint(listener);
    acceptor_ = std::make_unique<Acceptor>(std::move(listener), secret_, Claim{}, anybody, Encryption::kAuto);
  }
  Descriptor connect() const { return *connect_to(where_, Deadline::after(20)); }
  void step() {
    acceptor_->step(
        [this](Acceptor::PendingConnection pending) { (pending.accepted ? accepted_ : turned_away_) += 1; });
  }
  static void send(const Descriptor& socket, std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  const Secret secret_ = Secret::generate();
  Endpoint where_;
  std::unique_ptr<Acceptor> acceptor_;
  std::size_t accepted_ = 0;
  std::size_t turned_away_ = 0;
};

TEST_F(AcceptorTest, AFloodOfUnauthenticatedPeersIsSummedUpInItsLines) {
  constexpr std::size_t kPeers = 2000;
  const LoggedLines lines;
  const std::array<std::byte, kHandshakeHeaderBytes> garbage{};
  const Deadline deadline = Deadline::after(120);
  for (std::size_t peer = 0; peer < kPeers; ++peer) {
    const Descriptor socket = connect();
    send(socket, garbage);
    while (turned_away_ <= peer && !deadline.passed()) step();
  }
  EXPECT_EQ(turned_away_, kPeers);
  acceptor_.reset();
  const std::string text = lines.text();
  EXPECT_LT(std::ranges::count(text, '\n'), 100) << text.substr(0, 2000);
  // No peer is left out of the count.
  std::size_t counted = 0;
  const std::regex line("turned away (a connection|([0-9]+) more connections)");
  for (auto match = std::sregex_iterator(text.begin(), text.end(), line); match != std::sregex_iterator(); ++match) {
    counted += (*match)[2].matched ? std::stoul((*match)[2]) : 1;
  }
  EXPECT_EQ(counted, kPeers) << text;
}

// It has proved itself, and nobody has read that yet when more peers come than may wait.
TEST_F(AcceptorTest, APeerWhoseProofHasComeIsNotPushedOutByLaterOnes) {
  Handshake handshake(Handshake::Role::kConnector, secret_, Claim{}, anybody);
  const Descriptor rank = connect();
  send(rank, handshake.take_output());
  const Deadline deadline = Deadline::after(20);
  while (!deadline.passed()) {
    step();
    std::vector<std::byte> bytes(handshake.wanted());
    if (::recv(rank.get(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT) != std::ssize(bytes)) continue;
    ASSERT_EQ(::recv(rank.get(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
    ASSERT_TRUE(handshake.feed(bytes));
    if (const auto proof = handshake.take_output(); !proof.empty()) {
      send(rank, proof);
      break;
    }
  }
  std::vector<Descriptor> others;
  for (int i = 0; i < 300; ++i) others.push_back(connect());
  while (turned_away_ < others.size() - kMaxPending && !deadline.passed()) step();
  EXPECT_EQ(accepted_, 1u);
  EXPECT_EQ(turned_away_, others.size() - kMaxPending);  // the first ones have made way for the last
}

}  // namespace
}  // namespace motley::net
