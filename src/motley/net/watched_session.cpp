#include "motley/net/watched_session.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "motley/base/guard.h"
#include "motley/base/os/signals.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr double kBeatSeconds = 1;
constexpr double kAbortSeconds = 2;         // abort() waits for the word to leave
constexpr double kLeaveSeconds = 10;        // leave() waits for the others
constexpr double kLingerSeconds = 0.3;      // after the last word, so that it is not lost with the socket
constexpr std::size_t kMaxQueuedBeats = 8;  // to a rank that does not read

// Refers to the process that has the number now, whoever has it later; invalid where the system has no such thing.
Descriptor open_process(std::int64_t process) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0)));
}

void kill_process(const Descriptor& process) {
  if (!MOTLEY_GUARD("kill-lost-process", !process.valid()))
    ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
}

std::chrono::duration<double> seconds(double value) {
  return std::chrono::duration<double>(value);
}

}  // namespace

WatchedSession::WatchedSession(SessionOptions options, Secret secret, Gathering gathering)
    : options_(std::move(options)),
      secret_(std::move(secret)),
      membership_(std::move(gathering.membership)),
      rank_(membership_.rank),
      beat_seconds_(std::min(kBeatSeconds, options_.silence_seconds / (options_.is_elastic ? 10 : 4))),
      peers_(rank_, membership_.size()),
      epoch_(membership_.epoch),
      controls_(std::move(gathering.controls)),
      acceptor_(
          std::move(gathering.data_listener), secret_, own_claim(options_, membership_, 0),
          [this](const Claim& peer) { return judge(peer); }, options_.encryption),
      suspicion_(rank_) {
  control_connections_.open =
      static_cast<int>(std::ranges::count_if(controls_, [](const auto& control) { return !!control; }));
  if (options_.is_elastic) {
    Epoch first{membership_.epoch, {}};
    elastic_.processes.resize(membership_.members.size());
    for (int rank = 0; rank < membership_.size(); ++rank) {
      first.members.push_back(rank);
      const Member& member = membership_.members[static_cast<std::size_t>(rank)];
      if (member.process > 0 && member.process != ::getpid() &&
          member.host_id == membership_.members[static_cast<std::size_t>(rank_)].host_id) {
        elastic_.processes[static_cast<std::size_t>(rank)] = open_process(member.process);
      }
    }
    elastic_.roster.emplace(rank_, std::move(first), Roster::Options{.give_up_seconds = options_.join_seconds});
  }
  watcher_ = start_thread([this] { watch(); });
}

WatchedSession::~WatchedSession() {
  {
    const std::lock_guard lock(mutex_);
    requests_.stopping = true;
  }
  waits_.wake();
  watcher_.join();
}

void WatchedSession::abort(const Error& error) {
  AbortMessage report{rank_, error};
  if (report.error.rank < 0 || report.error.rank >= membership_.size()) report.error.rank = rank_;
  std::unique_lock lock(mutex_);
  requests_.reports.push_back(std::move(report));
  requests_.are_sent = false;
  waits_.wake();
  changed_.wait_for(lock, seconds(kAbortSeconds), [this] { return failed() && requests_.are_sent; });
}

Status WatchedSession::connect_all(const Deadline& deadline) {
  for (int peer = 1; peer < rank_; ++peer) {
    MOTLEY_ASSIGN(auto control, connect_to(peer, kControlPurpose, deadline));
    const std::lock_guard lock(mutex_);
    control_connections_.made.emplace_back(peer, std::move(control));
    waits_.wake();
  }
  std::unique_lock lock(mutex_);
  while (control_connections_.open < membership_.size() - 1) {
    if (failed()) return fail(failure_.error);
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "rank {}: {} of {} ranks were met within {:.3g} s", rank_,
                  control_connections_.open, membership_.size() - 1, deadline.allowed());
    }
    changed_.wait_for(lock, seconds(std::min(0.1, deadline.remaining())));
  }
  return {};
}

Result<std::vector<Epoch>> WatchedSession::regroup(const Deadline& deadline) {
  if (!options_.is_elastic) return Session::regroup(deadline);
  std::unique_lock lock(mutex_);
  const auto final_failure = [this] {
    Error error = failure_.error;
    if (error.code == ErrorCode::kPeerLost) error.code = ErrorCode::kRefused;  // no loss that one can go on after
    return fail(std::move(error));
  };
  while (epochs_.installed.empty() || !epochs_.is_agreed) {
    if (failure_.is_final) return final_failure();
    for (int rank = 0; rank < membership_.size(); ++rank) {
      if (!peers_.has_left(rank)) continue;
      return fail(Error{ErrorCode::kUnavailable, fmt::format("rank {} has left in order", rank), rank});
    }
    if (deadline.passed()) {
      return fail(ErrorCode::kTimeout, "those who are left have not agreed within {:.3g} s: {}", deadline.allowed(),
                  failure_.error.message);
    }
    changed_.wait_for(lock, seconds(std::min(0.1, deadline.remaining())));
  }
  if (failure_.is_final) return final_failure();
  epoch_ = epochs_.installed.back().number;
  std::erase_if(arrivals_, [this](const auto& arrival) { return std::get<0>(arrival.first) < epoch_; });
  failed_.store(false, std::memory_order_release);
  return std::exchange(epochs_.installed, {});
}

void WatchedSession::leave() {
  std::unique_lock lock(mutex_);
  requests_.leaving = true;
  waits_.wake();
  changed_.wait_for(lock, seconds(kLeaveSeconds), [this] { return failed() || control_connections_.open == 0; });
}

bool WatchedSession::checksums_with(int peer) const {
  const auto& members = membership_.members;
  return options_.payload_checksum &&
         members[static_cast<std::size_t>(peer)].host_id != members[static_cast<std::size_t>(rank_)].host_id;
}

// Whether a peer that knows the secret may open a data connection, or answer one.
Status WatchedSession::judge(const Claim& peer) const {
  const Claim own = own_claim(options_, membership_, 0);
  MOTLEY_TRY(check_same_job(own, peer));
  const Identity& identity = peer.identity;
  if (identity.session != membership_.session) {
    return fail(ErrorCode::kRefused, "rank {} is in session {:016x}, rank {} is in session {:016x}", identity.rank,
                identity.session, rank_, membership_.session);
  }
  // Others may know of an epoch before this rank does.
  const std::uint64_t epoch = epoch_;
  const bool is_control = identity.purpose == kControlPurpose;
  const bool is_current =
      options_.is_elastic && !is_control ? identity.epoch >= epoch : identity.epoch == membership_.epoch;
  if (!is_current) {
    return fail(ErrorCode::kRefused, "rank {} is in epoch {}, rank {} is in epoch {}", identity.rank, identity.epoch,
                rank_, epoch);
  }
  if (identity.rank < 0 || identity.rank >= membership_.size() || identity.rank == rank_ ||
      (is_control && !options_.is_elastic)) {
    return fail(ErrorCode::kRefused, "rank {} has no business with rank {} for purpose {}", identity.rank, rank_,
                identity.purpose);
  }
  return {};
}

Result<std::unique_ptr<Connection>> WatchedSession::connect(int peer, std::uint32_t purpose, const Deadline& deadline) {
  if (peer < 0 || peer >= membership_.size() || peer == rank_ || purpose == kControlPurpose) {
    return fail(ErrorCode::kInvalidInput, "rank {} cannot connect to rank {} of {} for purpose {}", rank_, peer,
                membership_.size(), purpose);
  }
  const auto timed_out = [&](const std::string& last) {
    return fail(Error{ErrorCode::kTimeout,
                      fmt::format("rank {} did not connect for purpose {} within {:.3g} s{}; last seen: {}", peer,
                                  purpose, deadline.allowed(), last, last_seen(peer)),
                      peer});
  };
  if (rank_ < peer) {
    std::unique_lock lock(mutex_);
    const auto key = std::tuple(epoch_.load(), peer, purpose);
    while (!arrivals_.contains(key)) {
      if (failed()) return fail(failure_.error);
      if (deadline.passed()) {
        lock.unlock();
        return timed_out("");
      }
      changed_.wait_for(lock, seconds(std::min(0.1, deadline.remaining())));
    }
    return std::move(arrivals_.extract(key).mapped());
  }

  auto connection = connect_to(peer, purpose, deadline);
  if (connection || connection.error().code != ErrorCode::kTimeout) return connection;
  return timed_out(": " + connection.error().message);
}

Result<std::unique_ptr<Connection>> WatchedSession::connect_to(int peer, std::uint32_t purpose,
                                                               const Deadline& deadline) {
  const Member& member = membership_.members[static_cast<std::size_t>(peer)];
  const std::uint64_t epoch = epoch_;
  const auto check = [&](const Claim& claim) -> Status {
    Claim listener = claim;  // listens from the first epoch on, for all
    listener.identity.epoch = std::max(epoch, claim.identity.epoch);
    MOTLEY_TRY(judge(listener));
    if (claim.identity.rank == peer) return {};
    return fail(ErrorCode::kRefused, "rank {} answers where rank {} was expected", claim.identity.rank, peer);
  };
  Claim own = own_claim(options_, membership_, purpose);
  own.identity.epoch = epoch;
  auto host = connect_and_authenticate(
      {member.address, member.port}, secret_, own, check, options_.encryption, deadline, [this] { return failed(); },
      [this](const Error& error) { return failed() || error.code == ErrorCode::kRefused; });
  if (host) {
    Identity identity = host->claim.identity;
    identity.purpose = purpose;
    identity.epoch = epoch;
    return std::make_unique<Connection>(std::move(host->channel), std::move(identity), checksums_with(peer));
  }
  if (failed()) return fail(failure());
  if (host.error().code == ErrorCode::kRefused) return fail(Error{ErrorCode::kRefused, host.error().message, peer});
  return fail(Error{ErrorCode::kTimeout, host.error().message, peer});
}

void WatchedSession::watch() {
  next_beat_ = monotonic_seconds() + beat_seconds_;
  for (bool running = true; running;) {
    acceptor_.add_to(waits_);
    for (const auto& control : controls_) {
      if (control) waits_.add(*control);
    }
    waits_.end_at(next_beat_);
    waits_.end_at(suspicion_.settle_at());
    if (elastic_.roster) waits_.end_at(elastic_.roster->next());
    for (const Descriptor& process : elastic_.processes) {
      if (process.valid()) waits_.add(process.get(), POLLIN);
    }
    waits_.wait();
    take_requests();
    for (int rank = 0; rank < membership_.size(); ++rank) receive_from(rank);
    if (elastic_.roster) watch_processes();
    acceptor_.step([this](Acceptor::PendingConnection pending) { admit(std::move(pending)); });
    if (monotonic_seconds() >= next_beat_) {
      next_beat_ = monotonic_seconds() + beat_seconds_;
      beat();
    }
    if (const auto verdict = suspicion_.find_verdict(monotonic_seconds())) settle(*verdict);
    const std::lock_guard lock(mutex_);
    requests_.are_sent = requests_.reports.empty() && std::ranges::none_of(controls_, [](const auto& control) {
                           return control && control->wants_to_write();
                         });
    control_connections_.open =
        static_cast<int>(std::ranges::count_if(controls_, [](const auto& control) { return !!control; }));
    epochs_.is_agreed = !elastic_.roster || !elastic_.roster->has_lost();
    running = !requests_.stopping;
    changed_.notify_all();
  }
  finish();
}

void WatchedSession::take_requests() {
  std::vector<AbortMessage> reports;
  bool leaving = false;
  {
    const std::lock_guard lock(mutex_);
    reports = std::exchange(requests_.reports, {});
    leaving = requests_.leaving;
    for (auto& [rank, control] : control_connections_.made)
      controls_[static_cast<std::size_t>(rank)] = std::move(control);
    control_connections_.made.clear();
  }
  for (AbortMessage& report : reports) {
    for (std::size_t rank = 0; rank < (elastic_.roster ? controls_.size() : std::size_t{rank_ != 0}); ++rank) {
      if (controls_[rank]) controls_[rank]->post_owned(kAbort, 0, encode_message(report));
    }
    consider(std::move(report), false);
  }
  if (leaving && !announced_leave_) {
    announced_leave_ = true;
    for (auto& control : controls_) {
      if (control) control->post_owned(kLeave, 0, {});
    }
  }
}

void WatchedSession::receive_from(int rank) {
  auto& control = controls_[static_cast<std::size_t>(rank)];
  if (!control) return;
  // What has arrived is read before anything is written: a word about the cause may stand before the end of the stream.
  for (;;) {
    auto message = control->try_receive();
    if (!message) {
      lose(rank, message.error().code == ErrorCode::kPeerLost
                     ? "ended: its connection closed"
                     : fmt::format("was cut off: {}", message.error().message));
      return;
    }
    if (!*message) break;
    handle(rank, **message);
    if (!control) return;
  }
  // An error while writing is not the last word either; reading will meet the end of the stream next time.
  (void)control->progress();
  if (peers_.silent_seconds(rank) > options_.silence_seconds) {
    lose(rank, fmt::format("has been silent for more than {:.3g} s", options_.silence_seconds));
  }
}

void WatchedSession::handle(int rank, const Message& message) {
  auto& control = controls_[static_cast<std::size_t>(rank)];
  peers_.receive_from(rank);
  switch (message.header.type) {
    case kHeartbeat: {
      const auto heartbeats = decode_message<std::vector<Heartbeat>>(message.payload, "heartbeat");
      if (!heartbeats) return lose(rank, fmt::format("was cut off: {}", heartbeats.error().message));
      return peers_.receive_from(rank, *heartbeats);
    }
    case kAbort: {
      auto report = decode_message<AbortMessage>(message.payload, "abort");
      if (!report) return lose(rank, fmt::format("was cut off: {}", report.error().message));
      if (rank == 0 || elastic_.roster) return settle(*report);
      report->reporter = rank;
      return consider(std::move(*report), false);
    }
    case kLeave: {
      peers_.receive_leave(rank);
      // A rank says nothing after this, so the lower one may close; the other waits for it to do so.
      if (rank_ < rank) control.reset();
      return;
    }
    case kRoster: {
      const auto word = decode_message<RosterMessage>(message.payload, "roster");
      if (!word || !elastic_.roster) return lose(rank, "was cut off: it sent a malformed word about who is left");
      return apply(elastic_.roster->receive(rank, *word, monotonic_seconds()));
    }
    default:
      return lose(rank, fmt::format("was cut off: it sent a message of unknown type {:#x}", message.header.type));
  }
}

void WatchedSession::lose(int rank, const std::string& how) {
  controls_[static_cast<std::size_t>(rank)].reset();
  const bool left = (rank_ > rank && announced_leave_) || peers_.has_left(rank);
  if (left) return;
  const Error error{ErrorCode::kPeerLost, fmt::format("rank {} {}; last seen: {}", rank, how, last_seen(rank)), rank};
  if (!elastic_.roster) return consider({rank_, error}, true);
  kill_process(elastic_.processes[static_cast<std::size_t>(rank)]);
  break_off(error, false);
  apply(elastic_.roster->lose(rank, monotonic_seconds()));
}

// Ends of processes on this host: news of a loss, or the proof that a lost rank does nothing any more.
void WatchedSession::watch_processes() {
  for (int rank = 0; rank < membership_.size(); ++rank) {
    Descriptor& process = elastic_.processes[static_cast<std::size_t>(rank)];
    if (!process.valid() || (waits_.events(process.get()) & POLLIN) == 0) continue;
    process.close();
    receive_from(rank);  // its last words
    if (controls_[static_cast<std::size_t>(rank)]) lose(rank, "ended");
    if (elastic_.roster->is_lost(rank)) apply(elastic_.roster->bury(rank, monotonic_seconds()));
  }
  if (monotonic_seconds() >= elastic_.roster->next()) apply(elastic_.roster->tick(monotonic_seconds()));
}

void WatchedSession::apply(const Roster::Actions& actions) {
  for (const Roster::Action& action : actions) {
    if (const auto* send = std::get_if<Roster::Send>(&action)) {
      auto& control = controls_[static_cast<std::size_t>(send->to)];
      if (!control) continue;
      control->post_owned(kRoster, 0, encode_message(send->message));
      (void)control->progress();
    } else if (const auto* cut = std::get_if<Roster::Cut>(&action)) {
      lose(cut->rank, "was lost by another rank");
    } else if (const auto* install = std::get_if<Roster::Install>(&action)) {
      {
        const std::lock_guard lock(mutex_);
        epochs_.installed.push_back(install->epoch);
      }
      break_off({ErrorCode::kPeerLost, "the ranks have changed", -1}, false);
      for (int rank = 0; rank < membership_.size(); ++rank) {
        if (rank == rank_ || std::ranges::binary_search(install->epoch.members, rank)) continue;
        auto& control = controls_[static_cast<std::size_t>(rank)];
        if (!control) continue;
        (void)control->progress();  // it is told
        control.reset();
        kill_process(elastic_.processes[static_cast<std::size_t>(rank)]);
      }
    } else {
      break_off({ErrorCode::kPeerLost, std::get<Roster::Stop>(action).reason, rank_}, true);
    }
  }
}

// The first failure stands until it is over, unless a final one comes.
void WatchedSession::break_off(const Error& error, bool is_final) {
  const std::lock_guard lock(mutex_);
  if (failure_.is_final || (failed() && !is_final)) return;
  failure_.error = error;
  failure_.is_final = is_final;
  failed_.store(true, std::memory_order_release);
}

void WatchedSession::consider(AbortMessage report, bool seen_directly) {
  if (failed() && !elastic_.roster) return;
  if (const auto verdict = suspicion_.consider(std::move(report), seen_directly, monotonic_seconds())) settle(*verdict);
}

void WatchedSession::settle(const AbortMessage& verdict) {
  suspicion_.clear();
  {
    const std::lock_guard lock(mutex_);
    if (failure_.is_final) return;
  }
  if (rank_ == 0) {
    for (auto& control : controls_) {
      if (control) {
        control->post_owned(kAbort, 0, encode_message(verdict));
        (void)control->progress();
      }
    }
  }
  break_off(verdict.error, true);
}

void WatchedSession::admit(Acceptor::PendingConnection pending) {
  if (!pending.accepted) return;
  const int peer = pending.claim.identity.rank;
  const std::uint32_t purpose = pending.claim.identity.purpose;
  const auto key = std::tuple(pending.claim.identity.epoch, peer, purpose);
  auto connection =
      std::make_unique<Connection>(std::move(pending.channel), std::move(pending.claim.identity), checksums_with(peer));
  if (purpose == kControlPurpose) {
    if (!elastic_.roster->is_lost(peer)) controls_[static_cast<std::size_t>(peer)] = std::move(connection);
    return;
  }
  const std::lock_guard lock(mutex_);
  // A second one for the same purpose is another attempt of a rank whose first one went wrong.
  arrivals_[key] = std::move(connection);
}

void WatchedSession::beat() {
  if (announced_leave_ && rank_ != 0) return;
  const auto payload = encode_message(peers_.list_heartbeats());
  for (auto& control : controls_) {
    if (control && control->pending_sends() < kMaxQueuedBeats) {
      control->post_owned(kHeartbeat, 0, payload);
      (void)control->progress();
    }
  }
}

// The last words. A socket that is closed with unread bytes in it resets the connection, which can overtake what was
// sent: so this side ends its stream first and reads until the peer has ended its own, or a moment has passed.
void WatchedSession::finish() {
  take_requests();
  if (const auto verdict = suspicion_.find_verdict(std::numeric_limits<double>::infinity())) settle(*verdict);
  const Deadline deadline = Deadline::after(kLingerSeconds);
  for (auto& control : controls_) {
    if (!control) continue;
    (void)control->flush(deadline, "the last words");
    control->finish_sending();
  }
  for (auto& control : controls_) {
    while (failed() && control && !deadline.passed()) {
      const auto message = control->try_receive();
      if (!message) break;
      if (!*message) wait_for(control->descriptor(), POLLIN, deadline.remaining_milliseconds());
    }
    control.reset();
  }
}

}  // namespace motley::net
