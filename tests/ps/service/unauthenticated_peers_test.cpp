// Peers that know the token and do what no client of ours does: the server refuses or outlives them, and goes on for
// others meanwhile.
#include <gmock/gmock.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>

#include "motley/net/admission.h"
#include "motley/net/connection.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/ps/protocol/sparse_protocol.h"
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
    auto connection = connect({job, "local", rank, 7, 1, kServerControl});
    EXPECT_TRUE(connection) << connection.error().message;
    const auto info = (*connection)->receive(soon(), "what it is");
    EXPECT_TRUE(info) << info.error().message;
    return std::move(*connection);
  }

  Result<std::unique_ptr<Connection>> connect(const net::Identity& identity) const {
    net::Claim claim;
    claim.identity = identity;
    return net::connect_to_host(service_->endpoint(), token(), claim, soon(), false, net::Encryption::kAuto,
                                [] { return false; });
  }
  // Why it is not let in, in the handshake or after it; "" where it is.
  std::string refusal(const net::Identity& identity) const {
    const auto connection = connect(identity);
    if (!connection) return connection.error().message;
    const auto answer = (*connection)->receive(soon(), "an answer");
    if (!answer) return answer.error().message;
    return answer->header.type == kServerFailed ? decode_server_failed(answer->payload)->message : "";
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

TEST_F(UnauthenticatedPeers, ARegionThatIsElsewhereOrTooSmallIsRefused) {
  const auto region = std::move(*net::Region::create(8192));
  for (const auto& [address, host, why] :
       {std::tuple(region->address(), std::string("elsewhere"), "rank 0 shares memory with a server of another host"),
        std::tuple(region->address(), net::host_id(), "8192"),
        std::tuple(net::RegionAddress(), net::host_id(), "do not fit each other")}) {
    const auto connection = control("region", 0);
    join(*connection, {.chunk_bytes = 4096,
                       .bucket_elements = {10'000},
                       .host_id = host,
                       .region = address,
                       .values_in_region = true});
    EXPECT_THAT(last_words(*connection), HasSubstr(why));
  }
  expect_alive();
}

TEST(UnauthenticatedPeersWithoutQuota, AModelLargerThanTheMachineIsRefused) {
  const auto service = std::move(*Service::start({.cores = 1}, token()));
  net::Claim claim;
  claim.identity = {"large", "local", 0, 7, 1, kServerControl};
  const auto connection = std::move(*net::connect_to_host(service->endpoint(), token(), claim, soon(), false,
                                                          net::Encryption::kAuto, [] { return false; }));
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

std::size_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// What a rank costs does not depend on its number.
TEST_F(UnauthenticatedPeers, AHighRankNumberTakesNoMemory) {
  const auto open = [&](int rank) {
    std::vector<std::unique_ptr<Connection>> connections;
    for (int job = 0; job < 20; ++job) {
      connections.push_back(control(fmt::format("job {} of rank {}", job, rank), rank));
    }
    return connections;
  };
  const std::size_t before = allocated_bytes();
  if (before == 0) GTEST_SKIP() << "this build's allocator does not count (a sanitizer's)";
  const auto low = open(0);
  const std::size_t between = allocated_bytes();
  const auto high = open(4095);
  EXPECT_LT(allocated_bytes() - between, 2 * (between - before));
}

// The same of a rack's server, for which others answer: it holds no more than the answers to so many requests.
TEST_F(UnauthenticatedPeers, ARankOfARackMayAskFasterThanItListens) {
  constexpr std::size_t kRequests = 2000;  // for 80 KB each
  const auto other = std::move(*Service::start({.cores = 2}, token()));
  const auto asker = control("racks", 0);
  net::Claim claim;
  claim.identity = {"racks", "local", 1, 7, 1, kServerControl};
  const auto second = std::move(*net::connect_to_host(other->endpoint(), token(), claim, soon(), false,
                                                      net::Encryption::kAuto, [] { return false; }));
  ASSERT_TRUE(second->receive(soon(), "what it is"));
  ServerJoin pair = {.size = 2, .chunk_bytes = 1 << 20, .bucket_elements = {20'000}, .host_id = "elsewhere"};
  pair.racks = {.rank_racks = {0, 1}, .servers = {service_->address(), other->address()}, .seconds = 20};
  join(*asker, pair);
  join(*second, pair);
  ASSERT_EQ(asker->receive(soon(), "that it has joined")->header.type, kServerJoined);
  const std::size_t before = allocated_bytes();
  if (before == 0) GTEST_SKIP() << "this build's allocator does not count (a sanitizer's)";
  for (std::size_t i = 0; i < kRequests; ++i) asker->post_send(kServerSave, StatePart{0, 0, 0}.tag(), {});
  std::size_t most = 0;
  for (int turn = 0; turn < 200; ++turn) {
    ASSERT_TRUE(asker->progress());
    control(fmt::format("job {}", turn), 0);  // the server goes on meanwhile
    most = std::max(most, allocated_bytes());
  }
  EXPECT_LT(most, before + (std::size_t{64} << 20));
  for (std::size_t answers = 0; answers < kRequests;) {
    ASSERT_TRUE(asker->progress());
    const auto answer = asker->try_receive();
    ASSERT_TRUE(answer) << answer.error().message;
    if (!*answer) continue;
    ASSERT_EQ((*answer)->header.type, kServerSave);
    ++answers;
  }
}

TEST_F(UnauthenticatedPeers, ARankBeyondTheAnnouncedSizeIsRefusedAndTheJobGoesOn) {
  const auto first = control("pair", 0);
  const ServerJoin pair = {.size = 2, .chunk_bytes = 4096, .bucket_elements = {10}, .host_id = "elsewhere"};
  join(*first, pair);
  expect_alive();  // the server has read the size
  EXPECT_THAT(refusal({"pair", "local", 2, 7, 1, kServerControl}), HasSubstr("job 'local/pair' has 2 ranks"));
  const auto second = control("pair", 1);
  join(*second, pair);
  for (Connection* rank : {first.get(), second.get()}) {
    EXPECT_EQ(rank->receive(soon(), "that it has joined")->header.type, kServerJoined);
  }
}

// The server reads no more than it may hold, and what is larger than any client's frame ends the probe.
TEST_F(UnauthenticatedPeers, AProbeThatIsNotReadHoldsNoMoreThanItsFrames) {
  const auto probe = std::move(*connect({"probe", "local", 0, 7, 1, kServerProbe}));
  const std::vector<std::byte> frame(kProbeFrameBytes);
  for (std::size_t i = 0; i < kProbeFrames; ++i) {
    ASSERT_TRUE(probe->send(kServerProbeFrame, i, frame, soon(), "a frame of it"));
    EXPECT_EQ(probe->receive(soon(), "the same frame")->header.length, kProbeFrameBytes);
  }
  ASSERT_TRUE(probe->send(kServerProbeFrame, 9, std::vector<std::byte>(kProbeFrameBytes + 1), soon(), "a larger one"));
  EXPECT_EQ(probe->receive(soon(), "its end").error().code, ErrorCode::kPeerLost);
}

// A server whose clients may have only a few of everything. Who is refused learns which cap it was, and what ends no
// longer counts.
class Capped : public UnauthenticatedPeers {
 protected:
  Capped() { service_ = std::move(*Service::start({.cores = 1}, Tenants(token(), {7, 2, 2, 1}))); }
  // Until the server lets it in, as it does not at once where it has not noticed yet that another one has gone.
  std::unique_ptr<Connection> eventually(const net::Identity& identity) const {
    for (const Deadline deadline = soon();;) {
      auto connection = connect(identity);
      if (connection) return std::move(*connection);
      if (deadline.passed()) {
        ADD_FAILURE() << connection.error().message;
        return nullptr;
      }
    }
  }
};

TEST_F(Capped, ProbesAreFewAndAnotherMayFollow) {
  auto probe = std::move(*connect({"a", "local", 0, 7, 1, kServerProbe}));
  // Tenants' names are free where there is one token for all.
  for (const char* tenant : {"local", "another"}) {
    EXPECT_THAT(
        refusal({"b", tenant, 0, 8, 1, kServerProbe}),
        HasSubstr("clients with this token have 1 probes of links here and want 1 more; max_probes lets them have 1"));
  }
  probe.reset();
  EXPECT_NE(eventually({"b", "local", 0, 8, 1, kServerProbe}), nullptr);
}

TEST_F(Capped, ThreadsOfEmbeddingsAreFew) {
  const auto first = std::move(*connect({"a", "local", 0, 7, 1, kSparseConnection}));
  const auto second = std::move(*connect({"a", "local", 1, 7, 1, kSparseConnection}));
  EXPECT_THAT(refusal({"a", "local", 2, 7, 1, kSparseConnection}), HasSubstr("max_threads lets them have 2"));
}

TEST_F(Capped, JobsAreFewOfBothKinds) {
  const auto dense = control("a", 0);
  auto sparse = std::move(*connect({"a", "local", 0, 7, 1, kSparseConnection}));
  for (const std::uint32_t purpose : {kServerControl, kSparseConnection}) {
    EXPECT_THAT(refusal({"b", "local", 0, 7, 1, purpose}), HasSubstr("max_jobs lets them have 2"));
  }
  sparse.reset();
  for (const Deadline deadline = soon();;) {
    const std::string why = refusal({"b", "local", 0, 7, 1, kServerControl});
    if (why.empty()) break;
    ASSERT_FALSE(deadline.passed()) << why;
  }
}

TEST_F(Capped, ConnectionsOfAllKindsAreFewTogether) {
  const auto probe = std::move(*connect({"a", "local", 0, 7, 1, kServerProbe}));
  std::vector<std::unique_ptr<Connection>> all;
  for (int rank = 0; rank < 6; ++rank) all.push_back(control("a", rank));
  EXPECT_THAT(refusal({"a", "local", 6, 7, 1, kServerControl}),
              HasSubstr("have 7 connections here and want 1 more; max_connections lets them have 7"));
  all.pop_back();  // which ends its job, and that the others
  EXPECT_THAT(last_words(*all[0]), HasSubstr("rank 5"));
  all.clear();
  EXPECT_NE(eventually({"c", "local", 0, 9, 1, kServerControl}), nullptr);
}

// One tenant at its caps leaves another what it may have.
TEST(TenantCaps, AreOfEachTenant) {
  const auto other = net::Secret::generate();
  const auto service = std::move(*Service::start(
      {.cores = 1}, Tenants(std::map<std::string, Tenant>{{"a", {.token = token(), .caps = {1, 1, 1, 1}}},
                                                          {"b", {.token = other, .caps = {1, 1, 1, 1}}}})));
  const auto connect = [&](const std::string& tenant, const net::Secret& secret) {
    net::Claim claim;
    claim.identity = {"job", tenant, 0, 7, 1, kServerProbe};
    return net::connect_to_host(service->endpoint(), secret, claim, soon(), false, net::Encryption::kAuto,
                                [] { return false; });
  };
  const auto first = connect("a", token());
  EXPECT_TRUE(first);
  EXPECT_THAT(connect("a", token()).error().message, HasSubstr("clients of tenant 'a' have 1 connections"));
  EXPECT_TRUE(connect("b", other));
}

}  // namespace
}  // namespace motley::ps
