#include "motley/ps/client/server_watch.h"

#include "motley/base/log.h"
#include "motley/net/admission.h"
#include "motley/ps/protocol/server_protocol.h"

namespace motley::ps {
namespace {

constexpr double kLookAgainSeconds = 0.05;  // between two looks at whether an answer is of no use any more

}  // namespace

std::string describe_server(const ServerAddress& address) {
  return fmt::format("server at {}", net::to_string(address.endpoint));
}

Status ServerWatch::check() {
  return monotonic_seconds() < asked_ + session_.options().silence_seconds / 2 ? Status() : ask();
}

Status ServerWatch::ask() {
  for (Server& server : servers_) {
    const auto stuck = ask_for_progress(server.address);
    if (!stuck) MOTLEY_TRY(session_.health());
    const bool was_late = server.is_late;
    server.is_late = stuck && *stuck > session_.patience();
    if (stuck && !(server.is_late && was_late)) continue;
    lost_ = static_cast<std::size_t>(&server - servers_.data());
    const std::string how =
        stuck ? fmt::format("it has made no progress for {:.3g} s, although it answers", *stuck)
              : fmt::format("it did not answer within {:.3g} s", session_.options().silence_seconds / 2);
    if (session_.options().is_elastic) spdlog::warn("the {} was lost: {}", describe_server(server.address), how);
    return fail(ErrorCode::kServerLost, "the {} was lost: {}", describe_server(server.address), how);
  }
  asked_ = monotonic_seconds();
  return {};
}

// For how many seconds it has made none. A server that refuses to say so is there.
Result<double> ServerWatch::ask_for_progress(const ServerAddress& address) const {
  const net::SessionOptions& own = session_.options();
  const net::Membership& membership = session_.membership();
  const Deadline deadline = Deadline::after(own.silence_seconds / 2);
  net::Claim claim;
  claim.identity = {own.job, own.tenant, membership.rank, membership.session, membership.epoch, kServerProbe};
  claim.fingerprint = own.fingerprint;
  const auto is_in_vain = [&] { return !session_.health(); };
  auto let_in = net::connect_to_host(address.endpoint, address.token, claim, deadline, own.payload_checksum,
                                     own.encryption, is_in_vain);
  if (!let_in && let_in.error().code == ErrorCode::kRefused) return 0.0;
  MOTLEY_ASSIGN(const auto probe, std::move(let_in));
  MOTLEY_TRY(probe->send(kServerProgress, 0, {}, deadline, "a question", is_in_vain));
  for (;;) {
    const auto answer = probe->receive(Deadline::after(kLookAgainSeconds), "whether it goes on");
    if (answer && answer->header.type == kServerProgress) return decode_server_progress(answer->payload);
    if (answer) return 0.0;
    if (answer.error().code != ErrorCode::kTimeout || deadline.passed() || is_in_vain()) return fail(answer.error());
  }
}

}  // namespace motley::ps
