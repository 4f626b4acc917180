// The server sends back whatever it gets, so that both directions are in use as they are in an exchange.
#include "motley/train/sync/link_probe.h"

#include <poll.h>

#include <algorithm>
#include <numeric>

#include "motley/net/admission.h"
#include "motley/net/socket.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::train {
namespace {

constexpr double kWarmUpSeconds = 0.15;
constexpr double kMeasuredSeconds = 0.35;

// Bytes a second that come back.
Result<double> echo(net::Session& session, const ps::ServerAddress& server, const Deadline& deadline) {
  const net::SessionOptions& own = session.options();
  net::Claim claim;
  claim.identity.job = own.job;
  claim.identity.tenant = own.tenant;
  claim.identity.rank = session.membership().rank;
  claim.identity.session = session.membership().session;
  claim.identity.epoch = session.membership().epoch;
  claim.identity.purpose = ps::kServerProbe;
  MOTLEY_ASSIGN(const auto connection,
                net::connect_to_host(server.endpoint, server.token, claim, deadline, own.payload_checksum,
                                     own.encryption, [&] { return !session.health(); }));
  const std::vector<std::byte> out(ps::kProbeFrameBytes);
  std::vector<std::byte> in(ps::kProbeFrameBytes);
  std::uint64_t sent = 0;
  std::uint64_t counted_from = 0;
  const double began = monotonic_seconds();
  double counting_since = 0;
  for (;;) {
    const std::uint64_t back = sent - connection->pending_receives();
    const double now = monotonic_seconds();
    if (counting_since == 0 && now >= began + kWarmUpSeconds) {
      counting_since = now;
      counted_from = back;
    }
    // A slow link gets the time for one frame at least.
    if (counting_since > 0 && now >= counting_since + kMeasuredSeconds && back > counted_from) {
      return static_cast<double>((back - counted_from) * ps::kProbeFrameBytes) / (now - counting_since);
    }
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "the server at {} did not send back {} bytes within {:.3g} s",
                  net::to_string(server.endpoint), ps::kProbeFrameBytes, deadline.allowed());
    }
    for (; sent < back + ps::kProbeFrames; ++sent) {
      connection->post_send(ps::kServerProbeFrame, sent, out);
      connection->post_receive(ps::kServerProbeFrame, sent, in);
    }
    const auto moved = connection->progress();
    if (!moved) {
      return fail(ErrorCode::kServerLost, "the server at {} was lost while its link was measured: {}",
                  net::to_string(server.endpoint), moved.error().message);
    }
    if (*moved) continue;
    if (const Status health = session.health(); !health) return fail(health.error());
    net::wait_for(connection->descriptor(), static_cast<short>(POLLIN | (connection->wants_to_write() ? POLLOUT : 0)),
                  20);
  }
}

// All ranks at once, each with its server: everybody's bytes a second.
Result<std::vector<double>> echo_all(net::Session& session, collective::Group& group, const ps::ServerAddress& server,
                                     const Deadline& deadline) {
  MOTLEY_TRY(group.barrier(deadline));
  MOTLEY_ASSIGN(const double speed, echo(session, server, deadline));
  return group.all_gather(std::span(&speed, 1), deadline);
}

}  // namespace

Result<std::vector<double>> measure_servers(net::Session& session, collective::Group& group,
                                            const std::vector<ps::ServerAddress>& servers, const Deadline& deadline) {
  std::vector<double> sums;
  for (const ps::ServerAddress& server : servers) {
    MOTLEY_ASSIGN(const auto speeds, echo_all(session, group, server, deadline));
    sums.push_back(std::accumulate(speeds.begin(), speeds.end(), 0.0));
  }
  return sums;
}

Result<RackSpeeds> measure_racks(net::Session& session, collective::Group& group,
                                 const std::vector<ps::ServerAddress>& servers, const std::vector<int>& rank_racks,
                                 const Deadline& deadline) {
  const auto racks = servers.size();
  const auto own = static_cast<std::size_t>(rank_racks[static_cast<std::size_t>(session.membership().rank)]);
  std::vector<double> slowest;            // by way: a worker's
  std::vector<std::vector<double>> sums;  // by way and rack
  for (const std::size_t server : {own, (own + 1) % racks}) {
    MOTLEY_ASSIGN(const auto speeds, echo_all(session, group, servers[server], deadline));
    slowest.push_back(*std::ranges::min_element(speeds));
    auto& sum = sums.emplace_back(racks);
    for (std::size_t rank = 0; rank < speeds.size(); ++rank) {
      sum[static_cast<std::size_t>(rank_racks[rank])] += speeds[rank];
    }
  }
  RackSpeeds found = {.worker_bytes_per_second = slowest[0],
                      .server_bytes_per_second = *std::ranges::min_element(sums[0])};
  // A rack's uplink carries what its workers send, and what its server sends back to the rack before it.
  for (std::size_t rack = 0; rack < racks; ++rack) {
    const double both = sums[1][rack] + sums[1][(rack + racks - 1) % racks];
    found.uplink_bytes_per_second = rack == 0 ? both : std::min(found.uplink_bytes_per_second, both);
  }
  return found;
}

}  // namespace motley::train
