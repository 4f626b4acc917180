// Peers that know the token and do what no client of ours does: the server refuses or outlives them, and goes on for
// others meanwhile.
#include <gmock/gmock.h>

#include <cstring>

#include "motley/net/admission.h"
#include "motley/net/connection.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/ps/service/service.h"

namespace motley::ps {
namespace {

using net::Connection;
using ::testing::HasSubstr;

const net::Secret& token() {
  static const net::Secret secret = net::Secret::generate();
  return secret;
}
Deadline soon() {
  return Deadline::after(20);
}

class UnauthenticatedPeers : public ::testing::Test {
 protected:
  std::unique_ptr<Connection> control(const std::string& job, int rank) const {
    net::Claim claim;
    claim.identity = {job, "local", rank, 7, 1, kServerControl};
    auto connection = net::connect_to_host(service_->endpoint(), token(), claim, soon(), false, [] { return false; });
    EXPECT_TRUE(connection) << connection.error().message;
    const auto info = (*connection)->receive(soon(), "what it is");
    EXPECT_TRUE(info) << info.error().message;
    return std::move(*connection);
  }

  // What the server says when it ends this connection's job.
  static std::string last_words(Connection& connection) {
    for (;;) {
      const auto message = connection.receive(soon(), "last words");
      if (!message) return message.error().message;
      if (message->header.type != kServerFailed) continue;
      const auto error = decode_server_failed(message->payload);
      return error ? error->message : error.error().message;
    }
  }

  static void join(Connection& connection, const ServerJoin& join) {
    ASSERT_TRUE(connection.send(kServerJoin, 0, encode(join), soon(), "the join"));
  }

  void expect_alive() const {
    const auto other = control("another", 0);
    join(*other, {.chunk_bytes = 4096, .bucket_elements = {10}, .host_id = "elsewhere"});
    const auto joined = other->receive(soon(), "that it has joined");
    ASSERT_TRUE(joined) << joined.error().message;
    EXPECT_EQ(joined->header.type, kServerJoined);
  }

  std::unique_ptr<Service> service_ = std::move(*Service::start({.cores = 2, .quota_bytes = 1 << 30}, token()));
};

TEST_F(UnauthenticatedPeers, AServerBetweenRacksMayEndBeforeItJoins) {
  const auto first = control("racks", 0);
  auto second = control("racks", 1);
  ServerJoin between = {.size = 2, .bins = 2, .cores = 1, .chunk_bytes = 4096, .bucket_elements = {100}};
  between.racks = {
      .rank_racks = {0, 1}, .servers = {"127.0.0.1:1", "127.0.0.1:2"}, .between_servers = true, .seconds = 5};
  join(*first, between);
  second.reset();
  EXPECT_THAT(last_words(*first), HasSubstr("127.0.0.1:2"));
  expect_alive();
}

TEST_F(UnauthenticatedPeers, ModelsThatNoMachineHoldsAreRefusedBeforeTheyAreCut) {
  for (const auto& [bins, elements, why] :
       {std::tuple(1, std::uint64_t{1} << 38, "quota"), std::tuple(65'536, std::uint64_t{1} << 36, "segments")}) {
    const auto connection = control("large", 0);
    join(*connection,
         {.bins = bins, .cores = 1, .chunk_bytes = 32 << 10, .bucket_elements = {elements}, .host_id = "elsewhere"});
    EXPECT_THAT(last_words(*connection), HasSubstr(why));
  }
  expect_alive();
}

TEST(UnauthenticatedPeersWithoutQuota, AModelLargerThanTheMachineIsRefused) {
  const auto service = std::move(*Service::start({.cores = 1}, token()));
  net::Claim claim;
  claim.identity = {"large", "local", 0, 7, 1, kServerControl};
  const auto connection =
      std::move(*net::connect_to_host(service->endpoint(), token(), claim, soon(), false, [] { return false; }));
  const ServerJoin join = {
      .chunk_bytes = 32 << 10, .bucket_elements = {std::uint64_t{1} << 38}, .host_id = "elsewhere"};
  ASSERT_TRUE(connection->receive(soon(), "what it is"));
  ASSERT_TRUE(connection->send(kServerJoin, 0, encode(join), soon(), "the join"));
  const auto answer = connection->receive(soon(), "last words");
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->header.type, kServerFailed);
  EXPECT_THAT(decode_server_failed(answer->payload)->message, HasSubstr("this machine has"));
}

// More requests than answers that anybody reads: none is lost, and others are served meanwhile.
TEST_F(UnauthenticatedPeers, ARankMayAskFasterThanItListens) {
  constexpr std::size_t kRequests = 3000;
  constexpr std::size_t kElements = 20'000;
  const auto asker = control("asker", 0);
  join(*asker, {.chunk_bytes = 1 << 20, .bucket_elements = {kElements}, .host_id = "elsewhere"});
  ASSERT_EQ(asker->receive(soon(), "that it has joined")->header.type, kServerJoined);
  std::vector<float> weights(kElements, 3);
  for (std::uint32_t segment = 0;; ++segment) {
    // Segments are as the map has them; this is one bucket of one of two cores or both.
    const auto map = make_chunk_map(std::vector<std::size_t>{kElements}, 1 << 20, 1);
    if (segment == map.segments.size()) break;
    const auto part = std::as_bytes(std::span(weights)).first(map.segments[segment].count * sizeof(float));
    ASSERT_TRUE(asker->send(kServerLoad, StatePart{0, segment, 0}.tag(), part, soon(), "weights"));
  }
  ASSERT_TRUE(asker->send(kServerLoaded, 0, {}, soon(), "the end of the weights"));
  ASSERT_EQ(asker->receive(soon(), "that all have loaded")->header.type, kServerLoaded);
  const std::uint64_t tag = StatePart{0, 0, 0}.tag();
  for (std::size_t i = 0; i < kRequests; ++i) asker->post_send(kServerSave, tag, {});
  while (asker->pending_sends() > kRequests / 2) {
    const auto moved = asker->progress();
    ASSERT_TRUE(moved) << moved.error().message;
    if (!*moved) break;
  }
  expect_alive();
  for (std::size_t i = 0; i < kRequests;) {
    ASSERT_TRUE(asker->progress());
    const auto answer = asker->try_receive();
    ASSERT_TRUE(answer) << answer.error().message;
    if (!*answer) continue;
    ASSERT_EQ((*answer)->header.type, kServerSave);
    ASSERT_EQ((*answer)->header.tag, tag);
    float first = 0;
    std::memcpy(&first, (*answer)->payload.data(), sizeof(first));
    ASSERT_EQ(first, 3);
    ++i;
  }
}

}  // namespace
}  // namespace motley::ps
