// The worker's side of joining, without a session.
#include "motley/ps/uplink.h"

#include <algorithm>

#include "motley/net/host.h"

namespace motley::ps {
namespace {

constexpr double kListenSeconds = 0.05;  // between two looks at whether to give up

// The next message, which is to be of this type.
Result<net::Message> hear(net::TcpConnection& control, std::uint16_t type, const std::string& server,
                          const std::string& what, const Deadline& deadline, const std::atomic<bool>& cancelled) {
  for (;;) {
    auto message = control.receive(Deadline::after(kListenSeconds), what);
    if (message && message->header.type == type) return message;
    if (message && message->header.type == collective::kServerFailed) {
      MOTLEY_ASSIGN(const Error error, collective::decode_server_failed(message->payload));
      return fail(error.within(server));
    }
    if (message) {
      return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x}", server, message->header.type);
    }
    if (message.error().code != ErrorCode::kTimeout) {
      return fail(ErrorCode::kServerLost, "the {} was lost while racks met: {}", server, message.error().message);
    }
    if (cancelled) return fail(ErrorCode::kInterrupted, "the job has ended");
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: waited {:.3g} s for {}", server, deadline.allowed(), what);
    }
  }
}

}  // namespace

std::string server_name(const collective::RackPlan& racks, int rack) {
  return "server at " + racks.servers[static_cast<std::size_t>(rack)];
}

Result<Uplinks> meet_racks(const collective::ServerJoin& join, net::Claim claim, const net::Secret& token,
                           bool payload_checksum, const std::atomic<bool>& cancelled) {
  const Deadline deadline = Deadline::after(join.racks.seconds);
  const auto connect = [&](int rack, std::uint32_t purpose) -> Result<std::unique_ptr<net::TcpConnection>> {
    MOTLEY_ASSIGN(const auto endpoint, net::parse_endpoint(join.racks.servers[static_cast<std::size_t>(rack)]));
    claim.identity.purpose = purpose;
    const bool checksum = payload_checksum && rack != claim.identity.rank;
    auto connection =
        net::connect_to_host(endpoint, token, claim, deadline, checksum, [&] { return cancelled.load(); });
    if (!connection) return fail(connection.error().within(server_name(join.racks, rack)));
    return connection;
  };
  const int racks = join.racks.racks();
  Uplinks uplinks;
  for (int rack = 0; rack < racks; ++rack) {
    const std::string name = server_name(join.racks, rack);
    MOTLEY_ASSIGN(auto control, connect(rack, collective::kServerControl));
    MOTLEY_ASSIGN(const auto message, hear(*control, collective::kServerInfo, name, "what it is", deadline, cancelled));
    MOTLEY_ASSIGN(const collective::ServerInfo info, collective::decode_server_info(message.payload));
    uplinks.cores = rack == 0 ? info.cores : std::min(uplinks.cores, info.cores);
    uplinks.controls.push_back(std::move(control));
  }
  collective::ServerJoin own = join;
  own.size = racks;
  own.bins = racks * uplinks.cores;
  own.cores = uplinks.cores;
  own.region.clear();
  own.racks.between_servers = true;
  for (int rack = 0; rack < racks; ++rack) {
    own.first_bin = rack * uplinks.cores;
    MOTLEY_TRY(uplinks.controls[static_cast<std::size_t>(rack)]->send(collective::kServerJoin, 0, encode(own), deadline,
                                                                      "joining"));
  }
  for (int rack = 0; rack < racks; ++rack) {
    MOTLEY_TRY(hear(*uplinks.controls[static_cast<std::size_t>(rack)], collective::kServerJoined,
                    server_name(join.racks, rack), "all racks' servers to join", deadline, cancelled));
  }
  uplinks.lanes.resize(static_cast<std::size_t>(uplinks.cores));
  for (int core = 0; core < uplinks.cores; ++core) {
    for (int rack = 0; rack < racks; ++rack) {
      MOTLEY_ASSIGN(auto lane, connect(rack, collective::kServerLane + static_cast<std::uint32_t>(core)));
      uplinks.lanes[static_cast<std::size_t>(core)].push_back(std::move(lane));
    }
  }
  return uplinks;
}

}  // namespace motley::ps
