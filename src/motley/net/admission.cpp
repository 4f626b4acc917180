#include "motley/net/admission.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/net/connection.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr double kHandshakeSeconds = 5;
constexpr double kTickSeconds = 0.25;
constexpr double kPauseSeconds = 0.25;  // where this process has as many descriptors as it may
// Unauthenticated peers at a time; one more turns out the oldest, which is the one least likely to be a rank.
constexpr std::size_t kMaxPending = 256;
// Of those turned away for one kind of reason, so many have a line within a period; the others are counted in one.
constexpr double kLogSeconds = 10;
constexpr double kLongestPause = 0.5;  // between attempts to connect
constexpr int kLoggedLines = 5;

// Handshake messages are smaller than any socket buffer, so one call sends them whole or never will.
bool flush(const Descriptor& socket, ChannelHandshake& handshake) {
  const auto output = handshake.take_output();
  return output.empty() || ::send(socket.get(), output.data(), output.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
                               static_cast<ssize_t>(output.size());
}

// Reads and answers as far as bytes are here. True while it can go on.
Result<bool> exchange(const Descriptor& socket, ChannelHandshake& handshake, std::vector<std::byte>& input) {
  while (!handshake.done()) {
    const std::size_t have = input.size();
    input.resize(handshake.wanted());
    const ssize_t got = ::recv(socket.get(), input.data() + have, input.size() - have, MSG_DONTWAIT);
    input.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) {
      return fail(ErrorCode::kPeerLost,
                  "the peer closed the connection during the handshake, as one does that speaks another protocol "
                  "version than {}",
                  kProtocolVersion);
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (got < 0) return fail(ErrorCode::kPeerLost, "the connection broke during the handshake: {}", errno_text());
    if (input.size() == handshake.wanted()) {
      const Status fed = handshake.feed(input);
      input.clear();
      const bool sent = flush(socket, handshake);
      MOTLEY_TRY(fed);
      if (!sent) return fail(ErrorCode::kPeerLost, "the connection broke during the handshake");
    }
  }
  return true;
}

Result<Host> connect_once(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                          const Handshake::Check& check, const Encryption& encryption, const Deadline& deadline,
                          const std::function<bool()>& cancelled) {
  MOTLEY_ASSIGN(Descriptor socket, connect_to(endpoint, deadline, cancelled));
  const Deadline patience = Deadline::after(std::min(deadline.remaining(), kHandshakeSeconds));
  ChannelHandshake handshake(Handshake::Role::kConnector, [&](const Claim&) { return secret; }, own, check,
                             {encryption, is_over_loopback(socket)});
  std::vector<std::byte> input;
  const std::string where = to_string(endpoint);
  if (!flush(socket, handshake)) {
    return fail(ErrorCode::kPeerLost, "{}: the connection broke during the handshake", where);
  }
  for (;;) {
    const auto result = exchange(socket, handshake, input);
    if (!result) return fail(result.error().within(where));
    if (*result) return Host{Channel(std::move(socket), handshake.take_tls()), handshake.peer()};
    if (patience.passed() || (cancelled && cancelled())) {
      return fail(ErrorCode::kTimeout, "{}: no complete handshake within {:.3g} s", where, patience.allowed());
    }
    wait_for(socket.get(), POLLIN, std::min(50, patience.remaining_milliseconds()));
  }
}

}  // namespace

Acceptor::Acceptor(Descriptor listener, Handshake::FindSecret find_secret, Claim own, Handshake::Check check,
                   const Encryption& encryption)
    : listener_(std::move(listener)),
      find_secret_(std::move(find_secret)),
      own_(std::move(own)),
      check_(std::move(check)),
      encryption_(encryption) {
  const Endpoint where = local_endpoint(listener_);
  if (encryption.mode == Encryption::kOff && !is_loopback(where.host).value_or(false)) {
    spdlog::warn("encryption is off at {}: who is on the way can read what comes and goes, and change it",
                 to_string(where));
  }
}

void Acceptor::add_to(WaitSet& waits) const {
  waits.add(listener_.get(), monotonic_seconds() < listens_from_ ? 0 : POLLIN);
  for (const Pending& pending : pending_) waits.add(pending.socket.get(), POLLIN);
  waits.end_after(kTickSeconds);
}

std::optional<Status> Acceptor::advance(Pending& pending) {
  const auto result = exchange(pending.socket, pending.handshake, pending.input);
  if (!result) return fail(result.error());
  if (*result) return Status();
  if (monotonic_seconds() < pending.give_up_at) return std::nullopt;
  return fail(ErrorCode::kTimeout, "no complete handshake within {} s", kHandshakeSeconds);
}

void Acceptor::step(const Decided& decided) {
  accept_all(decided);
  for (auto pending = pending_.begin(); pending != pending_.end();) pending = decide(pending, decided);
  log_counted(monotonic_seconds());
}

// No more than may wait, so that those are looked at again before others come.
void Acceptor::accept_all(const Decided& decided) {
  errno = 0;
  for (std::size_t accepted = 0; accepted < kMaxPending; ++accepted) {
    Descriptor socket = accept_from(listener_);
    if (!socket.valid()) break;
    std::string address = to_string(remote_endpoint(socket));
    const ChannelHandshake::Terms terms{encryption_, is_over_loopback(socket)};
    pending_.push_back({std::move(socket), std::move(address),
                        ChannelHandshake(Handshake::Role::kAcceptor, find_secret_, own_, check_, terms),
                        monotonic_seconds() + kHandshakeSeconds});
    if (pending_.size() > kMaxPending) {
      const Error reason{ErrorCode::kUnavailable,
                         fmt::format("it had proved nothing yet when {} later ones waited", kMaxPending), -1};
      decide(pending_.begin(), decided, reason);
    }
    errno = 0;
  }
  if (errno == EMFILE || errno == ENFILE) {
    const double now = monotonic_seconds();
    if (now >= tells_from_) {
      spdlog::warn("no more connections are let in for now: {}", errno_text());
      tells_from_ = now + kLogSeconds;
    }
    listens_from_ = now + kPauseSeconds;
  }
}

std::list<Acceptor::Pending>::iterator Acceptor::decide(std::list<Pending>::iterator pending, const Decided& decided,
                                                        const std::optional<Error>& otherwise) {
  std::optional<Status> status = advance(*pending);
  if (!status && otherwise) status = fail(*otherwise);
  if (!status) return std::next(pending);
  PendingConnection connection = {Channel(std::move(pending->socket), pending->handshake.take_tls()),
                                  std::move(pending->address), pending->handshake.peer(), std::move(*status)};
  if (!connection.accepted) log(connection);
  decided(std::move(connection));
  return pending_.erase(pending);
}

void Acceptor::log(const PendingConnection& turned_away) {
  const Error& error = turned_away.accepted.error();
  const double now = monotonic_seconds();
  log_counted(now);
  TurnedAway& alike = turned_away_[error.code];
  if (now >= alike.ends_at) alike = {.ends_at = now + kLogSeconds};
  if (alike.logged < kLoggedLines) {
    ++alike.logged;
    spdlog::warn("turned away a connection from {}: {}", turned_away.address, error.message);
  } else {
    ++alike.unlogged;
    alike.last = fmt::format("{}: {}", turned_away.address, error.message);
  }
}

// Of the periods that have ended.
void Acceptor::log_counted(double now) {
  for (auto& [code, alike] : turned_away_) {
    if (alike.unlogged == 0 || now < alike.ends_at) continue;
    spdlog::warn("turned away {} more connections within {} s, the last from {}", alike.unlogged, kLogSeconds,
                 alike.last);
    alike = {};
  }
}

Acceptor::~Acceptor() {
  log_counted(std::numeric_limits<double>::infinity());
}

Result<Host> connect_and_authenticate(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                      const Handshake::Check& check, const Encryption& encryption,
                                      const Deadline& deadline, const std::function<bool()>& cancelled,
                                      const std::function<bool(const Error&)>& is_final) {
  bool is_told = false;  // that this takes long
  for (double pause = 0.01;; pause = std::min(kLongestPause, 2 * pause)) {
    auto host = connect_once(endpoint, secret, own, check, encryption, deadline, cancelled);
    if (host || is_final(host.error()) || deadline.remaining() <= pause) return host;
    if (pause == kLongestPause && !is_told) {
      spdlog::info("waiting for {}, up to {:.3g} s: {}", to_string(endpoint), deadline.allowed(), host.error().message);
      is_told = true;
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + pause);
  }
}

Result<std::unique_ptr<Connection>> connect_to_host(const Endpoint& endpoint, const Secret& secret, const Claim& own,
                                                    const Deadline& deadline, bool payload_checksum,
                                                    const Encryption& encryption,
                                                    const std::function<bool()>& cancelled) {
  MOTLEY_TRY(check_names(own));
  const auto anybody = [](const Claim&) -> Status { return {}; };
  const auto is_final = [&](const Error& error) { return error.code == ErrorCode::kRefused || cancelled(); };
  auto host = connect_and_authenticate(endpoint, secret, own, anybody, encryption, deadline, cancelled, is_final);
  if (!host && is_final(host.error())) return fail(host.error());
  if (!host) {
    return fail(ErrorCode::kTimeout, "nobody let this rank in at {} within {:.3g} s: {}", to_string(endpoint),
                deadline.allowed(), host.error().message);
  }
  Identity identity = host->claim.identity;
  identity.rank = -1;
  identity.session = own.identity.session;
  identity.epoch = own.identity.epoch;
  identity.purpose = own.identity.purpose;
  return std::make_unique<Connection>(std::move(host->channel), std::move(identity), payload_checksum);
}

}  // namespace motley::net
