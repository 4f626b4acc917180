#include "motley/ps/client/control_connections.h"

#include <poll.h>

#include <algorithm>
#include <set>

#include "motley/net/admission.h"
#include "motley/net/socket.h"

namespace motley::ps {
namespace {

constexpr double kAnswerSeconds = 1;  // for a server to say whom it waits for

}  // namespace

ControlConnections::ControlConnections(net::Session& session, std::string job_suffix)
    : session_(session), job_suffix_(std::move(job_suffix)) {}

Result<std::unique_ptr<net::Connection>> ControlConnections::open(const ServerAddress& address, std::uint32_t purpose,
                                                                  const Deadline& deadline) const {
  const net::SessionOptions& own = session_.options();
  net::Claim claim;
  claim.identity.job = own.job + job_suffix_;
  claim.identity.tenant = own.tenant;
  claim.identity.rank = session_.membership().rank;
  claim.identity.session = session_.membership().session;
  claim.identity.epoch = session_.membership().epoch;
  claim.identity.purpose = purpose;
  claim.fingerprint = own.fingerprint;
  return net::connect_to_host(address.endpoint, address.token, claim, deadline, own.payload_checksum,
                              [&] { return !session_.health(); });
}

Status ControlConnections::connect(const std::vector<ServerAddress>& addresses, const Deadline& deadline) {
  for (const ServerAddress& address : addresses) {
    MOTLEY_ASSIGN(auto control, open(address, kServerControl, deadline));
    Server& server = servers_.emplace_back(
        Server{address, fmt::format("server at {}", net::to_string(address.endpoint)), std::move(control)});
    MOTLEY_ASSIGN(const auto message, receive_from(server, kServerInfo, deadline, "what it is"));
    MOTLEY_ASSIGN(const ServerInfo info, decode_server_info(message.payload));
    server.cores = info.cores;
    server.host_id = info.host_id;
  }
  return {};
}

Result<std::vector<std::unique_ptr<net::Connection>>> ControlConnections::open_channels(
    const Deadline& deadline) const {
  std::vector<std::unique_ptr<net::Connection>> channels;
  for (const Server& server : servers_) {
    for (int core = 0; core < server.cores; ++core) {
      MOTLEY_ASSIGN(auto channel, open(server.address, kServerChannel + static_cast<std::uint32_t>(core), deadline));
      channels.push_back(std::move(channel));
    }
  }
  return channels;
}

Result<net::Message> ControlConnections::receive_from(Server& server, std::uint16_t type, const Deadline& deadline,
                                                      const char* what) {
  for (;;) {
    auto message = server.control->try_receive();
    if (!message) return fail(message.error().within(server.name));
    if (*message && (*message)->header.type == kServerFailed) {
      MOTLEY_ASSIGN(const Error error, decode_server_failed((*message)->payload));
      verdict_ = error.within(server.name);
      return fail(*verdict_);
    }
    if (*message && (*message)->header.type == type) return std::move(**message);
    if (*message) {
      return fail(ErrorCode::kCorrupt, "{}: an unexpected frame of type {:#x}", server.name, (*message)->header.type);
    }
    MOTLEY_TRY(server.control->progress());
    if (const Status health = session_.health(); !health) return fail(health.error());
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "{}: waited {:.3g} s for {}", server.name, deadline.allowed(), what);
    }
    net::wait_for(server.control->descriptor(), POLLIN, std::min(50, deadline.remaining_milliseconds()));
  }
}

Status ControlConnections::check() {
  const std::lock_guard lock(mutex_);
  for (Server& server : servers_) {
    if (verdict_) break;
    const auto message = server.control->try_receive();
    if (!message) {
      verdict_ = Error{ErrorCode::kServerLost,
                       fmt::format("the {} was lost: it has ended, or a link is down", server.name), -1};
    } else if (*message && (*message)->header.type == kServerFailed) {
      const auto error = decode_server_failed((*message)->payload);
      verdict_ = (error ? *error : error.error()).within(server.name);
    }
  }
  if (verdict_) return fail(*verdict_);
  return {};
}

std::vector<int> ControlConnections::ask_for_missing() {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::after(kAnswerSeconds);
  std::set<int> missing;
  for (Server& server : servers_) {
    if (!server.control->send(kServerMissing, 0, {}, deadline, "a question")) continue;
    const auto answer = receive_from(server, kServerMissing, deadline, "whom it waits for");
    if (!answer) continue;
    for (const int rank : decode_missing_ranks(answer->payload, session_.membership().size())) missing.insert(rank);
  }
  return {missing.begin(), missing.end()};
}

void ControlConnections::leave() {
  if (failed_) return;
  const std::lock_guard lock(mutex_);
  for (Server& server : servers_) {
    server.control->post_owned(kServerLeave, 0, {});
    static_cast<void>(server.control->progress());
  }
}

}  // namespace motley::ps
