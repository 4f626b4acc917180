// Joining: the checks of what was asked for, the rendezvous, and the session that comes of it.
#include "motley/net/session.h"

#include "motley/net/messages.h"
#include "motley/net/rendezvous.h"
#include "motley/net/socket.h"
#include "motley/net/watched_session.h"

namespace motley::net {
namespace {

Status check_bind(const std::string& host, bool given_secret) {
  MOTLEY_ASSIGN(const bool loopback, is_loopback(host));
  if (!loopback && !given_secret) {
    return fail(
        ErrorCode::kInvalidInput,
        "listening at {} would be open to the network, which needs a secret that you chose: give every rank the "
        "same secret file (mode 0600) or variable {}, or listen on 127.0.0.1",
        host, kSecretVariable);
  }
  return {};
}

Status check(const SessionOptions& options) {
  if (options.size < 1 || options.size > static_cast<int>(kMaxRanks)) {
    return fail(ErrorCode::kInvalidInput, "a job cannot have {} ranks; 1 to {} are accepted", options.size, kMaxRanks);
  }
  if (options.rank < 0 || options.rank >= options.size) {
    return fail(ErrorCode::kInvalidInput, "rank {} is not one of the {} ranks 0 to {}", options.rank, options.size,
                options.size - 1);
  }
  for (const auto& [what, text] : {std::pair<const char*, const std::string&>("job", options.job),
                                   std::pair<const char*, const std::string&>("tenant", options.tenant),
                                   std::pair<const char*, const std::string&>("fingerprint", options.fingerprint)}) {
    if (text.size() > kMaxNameBytes) {
      return fail(ErrorCode::kInvalidInput, "the {} has {} bytes; at most {} are accepted", what, text.size(),
                  kMaxNameBytes);
    }
  }
  MOTLEY_TRY(check_bind(options.bind_host, options.given_secret));
  if (options.rank == 0) {
    MOTLEY_TRY(check_bind(options.rendezvous.host, options.given_secret));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::join(const SessionOptions& options, const Secret& secret) {
  MOTLEY_TRY(check(options));
  MOTLEY_ASSIGN(Gathering gathering, options.rank == 0 ? gather(options, secret) : attend(options, secret));
  return std::make_unique<WatchedSession>(options, secret, std::move(gathering));
}

Error first_cause(const Session& session, const Error& seen) {
  const Deadline deadline = Deadline::after(1);
  for (;;) {
    if (const Status health = session.health(); !health) {
      return health.error();
    }
    if (deadline.passed()) {
      return seen;
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.005);
  }
}

}  // namespace motley::net
