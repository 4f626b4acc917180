#include "motley/ps/client/server_watch.h"

#include "motley/net/admission.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {

std::string describe_server(const ServerAddress& address) {
  return fmt::format("server at {}", net::to_string(address.endpoint));
}

Status ServerWatch::check() {
  return monotonic_seconds() < asked_ + session_.options().silence_seconds / 2 ? Status() : ask();
}

Status ServerWatch::ask() {
  const net::SessionOptions& own = session_.options();
  const net::Membership& membership = session_.membership();
  net::Claim claim;
  claim.identity = {own.job, own.tenant, membership.rank, membership.session, membership.epoch, kServerProbe};
  claim.fingerprint = own.fingerprint;
  for (std::size_t number = 0; number < servers_.size(); ++number) {
    const ServerAddress& server = servers_[number];
    const auto answer =
        net::connect_to_host(server.endpoint, server.token, claim, Deadline::after(own.silence_seconds / 2),
                             own.payload_checksum, own.encryption, [&] { return !session_.health(); });
    if (answer || answer.error().code == ErrorCode::kRefused) continue;
    MOTLEY_TRY(session_.health());
    silent_ = number;
    return fail(ErrorCode::kServerLost, "the {} was lost: it did not answer within {:.3g} s", describe_server(server),
                own.silence_seconds / 2);
  }
  asked_ = monotonic_seconds();
  return {};
}

}  // namespace motley::ps
