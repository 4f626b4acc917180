#include "motley/net/watched_session.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "motley/base/guard.h"
#include "motley/base/os/signals.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr double kBeatSeconds = 1;
constexpr double kUnheardSilences = 3;   // times the bound of silence that a rank may be heard by rank 0 only
constexpr double kProgressSeconds = 10;  // that a rank of an elastic session may be behind the others, at least
constexpr double kProgressSteps = 20;    // and steps
constexpr double kForEver = std::numeric_limits<double>::infinity();
constexpr double kAbortSeconds = 2;   // abort() waits for the word to leave
constexpr double kLeaveSeconds = 10;  // leave() waits for the others
constexpr double kAnswerSeconds = 2;  // a member may take to say who is there
constexpr double kEnterSeconds = 5;   // may pass until a newcomer that is ready is a member
constexpr double kAskAgainSeconds = 0.05;
constexpr double kLingerSeconds = 0.3;      // after the last word, so that it is not lost with the socket
constexpr std::size_t kMaxQueuedBeats = 8;  // to a rank that does not read

}  // namespace

WatchedSession::WatchedSession(SessionOptions options, Secret secret, Gathering gathering)
    : options_(std::move(options)),
      secret_(std::move(secret)),
      membership_(std::move(gathering.membership)),
      is_newcomer_(options_.is_elastic && !std::ranges::binary_search(gathering.present, membership_.rank)),
      beat_seconds_(std::min(kBeatSeconds, options_.silence_seconds / (options_.is_elastic ? 10 : 4))),
      peers_(membership_.rank, membership_.size()),
      epoch_(membership_.epoch),
      controls_(std::move(gathering.controls)),
      acceptor_(
          std::move(gathering.data_listener), secret_, own_claim(options_, membership_, 0),
          [this](const Claim& peer) { return judge(peer); }, options_.encryption),
      suspicion_(membership_.rank, options_.seeks_cause),
      requests_(waits_) {
  requests_.publish(list_controls(), true);
  if (options_.is_elastic) members_.emplace(membership_, std::move(gathering.present), options_.join_seconds);
  watcher_ = start_thread([this] { watch(); });
}

WatchedSession::~WatchedSession() {
  requests_.stop();
  watcher_.join();
}

void WatchedSession::abort(const Error& error) {
  AbortMessage report{membership_.rank, error};
  if (report.error.rank < 0 || report.error.rank >= membership_.size()) report.error.rank = membership_.rank;
  requests_.report(std::move(report));
  requests_.wait(kAbortSeconds, [this] { return health_.failed() && requests_.are_sent(); });
}

Status WatchedSession::connect_all(const Deadline& deadline) {
  for (int peer = 1; peer < membership_.rank; ++peer) {
    MOTLEY_ASSIGN(auto control, connect_to(peer, kControlPurpose, deadline));
    requests_.take_over({peer, std::move(control), std::nullopt});
  }
  const auto all = static_cast<std::size_t>(options_.first_ranks() - 1);
  requests_.wait(deadline.remaining(), [&] { return health_.failed() || requests_.connected() == all; });
  if (health_.failed()) return fail(health_.failure());
  if (requests_.connected() == all) return {};
  return fail(ErrorCode::kTimeout, "rank {}: {} of {} ranks were met within {:.3g} s", membership_.rank,
              requests_.connected(), all, deadline.allowed());
}

std::set<int> WatchedSession::list_controls() const {
  std::set<int> ranks;
  for (int rank = 0; rank < std::ssize(controls_); ++rank) {
    if (controls_[static_cast<std::size_t>(rank)]) ranks.insert(rank);
  }
  return ranks;
}

Result<std::vector<Epoch>> WatchedSession::regroup(const Deadline& deadline) {
  if (!options_.is_elastic) return Session::regroup(deadline);
  if (std::exchange(is_newcomer_, false)) MOTLEY_TRY(enter(deadline));
  const auto use = [this](const Epoch& last, const std::map<int, Member>& newcomers) {
    for (const auto& [rank, member] : newcomers) {
      if (MOTLEY_KEEPS("planted-newcomer-address")) membership_.members[static_cast<std::size_t>(rank)] = member;
    }
    epoch_ = last.number;
    arrivals_.forget_before(last.number);
  };
  std::optional<std::vector<Epoch>> epochs;
  requests_.wait(deadline.remaining(), [&] {
    epochs = health_.recover(use);
    return epochs || health_.is_final() || find_left();
  });
  if (epochs) return std::move(*epochs);
  if (health_.is_final()) return fail(final_failure());
  if (const auto left = find_left()) return fail(*left);
  return fail(ErrorCode::kTimeout, "those who are left have not agreed within {:.3g} s: {}", deadline.allowed(),
              health_.failure().message);
}

// No loss that one can go on after: neither this rank's own, nor one that another rank has ended the job for.
Error WatchedSession::final_failure() const {
  Error error = health_.failure();
  const bool is_server = error.code == ErrorCode::kServerLost && MOTLEY_KEEPS("session-ended-for-server");
  if (error.code == ErrorCode::kPeerLost || is_server) error.code = ErrorCode::kRefused;
  return error;
}

// Whether nobody will answer any more where this rank waits for that one.
bool WatchedSession::is_in_vain(int peer) const {
  return health_.failed() || peers_.has_left(peer);
}

std::optional<Error> WatchedSession::find_left() const {
  for (int rank = 0; rank < membership_.size(); ++rank) {
    if (peers_.has_left(rank))
      return Error{ErrorCode::kUnavailable, fmt::format("rank {} has left in order", rank), rank};
  }
  return std::nullopt;
}

// Connects to all members, says so, and waits to become one. Whoever comes or goes meanwhile: it asks again.
Status WatchedSession::enter(const Deadline& deadline) {
  std::vector<Member> known;  // who may be asked
  std::ranges::copy_if(membership_.members, std::back_inserter(known), [this](const Member& member) {
    return member.port != 0 && &member != &membership_.members[static_cast<std::size_t>(membership_.rank)];
  });
  std::optional<std::string> last;  // why it was not taken in
  while (!deadline.passed()) {
    if (const auto left = find_left()) return fail(*left);
    if (health_.is_final()) return fail(final_failure());
    if (known.empty())
      return fail(ErrorCode::kUnavailable, "the job cannot be joined any more: {}",
                  last.value_or("nobody else is there"));
    const Deadline soon = Deadline::after(std::min(kAnswerSeconds, deadline.remaining()));
    auto running = ask_who_is_there({known.front().address, known.front().port}, options_, secret_, soon);
    if (!running || running->membership.session != membership_.session) {
      last = running ? "another job has taken its place" : running.error().message;
      known.erase(known.begin());
      continue;
    }
    known.clear();
    Status all;
    for (const int peer : running->present) {
      if (peer == membership_.rank) continue;  // its predecessor
      const Member& member = running->membership.members[static_cast<std::size_t>(peer)];
      known.push_back(member);
      membership_.members[static_cast<std::size_t>(peer)] = member;
      if (all) all = introduce_to(peer, member, soon);
    }
    if (all) {
      requests_.be_ready(running->present);
    } else if (!last || !deadline.passed()) {  // an attempt that the deadline cut off says less than one before it
      last = all.error().message;
    }
    const Deadline entered = Deadline::after(std::min(kEnterSeconds, deadline.remaining()));
    const auto is_decided = [this] { return health_.failed() || find_left(); };
    if (all) requests_.wait(entered.remaining(), is_decided);
    if (all && is_decided()) return {};
    SteadyClock::instance().sleep_until(monotonic_seconds() + kAskAgainSeconds);
  }
  return fail(ErrorCode::kTimeout, "rank {} was not taken in within {:.3g} s: {}", membership_.rank, deadline.allowed(),
              last.value_or("nobody else is there"));
}

// A control connection to a member, if there is none, over which it has learnt who this is.
Status WatchedSession::introduce_to(int peer, const Member& member, const Deadline& deadline) {
  if (requests_.is_connected(peer)) return {};
  MOTLEY_ASSIGN(auto control, connect_to(peer, kControlPurpose, deadline));
  const Member& own = membership_.members[static_cast<std::size_t>(membership_.rank)];
  const std::vector<std::byte> join = encode_message(JoinMessage{membership_.size(), own});
  MOTLEY_TRY(control->send(kJoin, 0, join, deadline, "who joins"));
  // Once one has become a member, all must know who it is.
  for (;;) {
    MOTLEY_ASSIGN(const Message answer, control->receive(deadline, "that it knows who joins"));
    if (answer.header.type == kJoin) break;
    if (answer.header.type != kHeartbeat) return fail(ErrorCode::kPeerLost, "rank {} is about to end", peer);
  }
  requests_.take_over({peer, std::move(control), member});
  return {};
}

void WatchedSession::leave() {
  requests_.leave();
  requests_.wait(kLeaveSeconds, [this] { return health_.failed() || requests_.connected() == 0; });
}

// Frames between hosts have checksums, if they are to.
bool WatchedSession::has_checksums(const Member& peer) const {
  return options_.payload_checksum &&
         peer.host_id != membership_.members[static_cast<std::size_t>(membership_.rank)].host_id;
}

// Whether a peer that knows the secret may open a data connection, or answer one. Any thread.
Status WatchedSession::judge_peer(const Claim& peer) const {
  MOTLEY_TRY(check_same_job(own_claim(options_, membership_, 0), peer));
  const Identity& identity = peer.identity;
  if (identity.session != membership_.session) {
    return fail(ErrorCode::kRefused, "rank {} is in session {:016x}, rank {} is in session {:016x}", identity.rank,
                identity.session, membership_.rank, membership_.session);
  }
  // Others may know of an epoch before this rank does.
  const std::uint64_t epoch = epoch_;
  const bool is_control = identity.purpose == kControlPurpose;
  if (!is_control && (options_.is_elastic ? identity.epoch < epoch : identity.epoch != epoch)) {
    return fail(ErrorCode::kRefused, "rank {} is in epoch {}, rank {} is in epoch {}", identity.rank, identity.epoch,
                membership_.rank, epoch);
  }
  if (identity.rank < 0 || identity.rank >= membership_.size() || identity.rank == membership_.rank ||
      (is_control && !options_.is_elastic)) {
    return fail(ErrorCode::kRefused, "rank {} has no business with rank {} for purpose {}", identity.rank,
                membership_.rank, identity.purpose);
  }
  return {};
}

// Whoever connects, also with a question or as a newcomer.
Status WatchedSession::judge(const Claim& peer) const {
  const Identity& identity = peer.identity;
  if (identity.purpose == kQuestionPurpose) {
    if (!members_) return fail(ErrorCode::kRefused, "this session's ranks cannot change");
    return check_same_job(own_claim(options_, membership_, 0), peer);
  }
  MOTLEY_TRY(judge_peer(peer));
  if (identity.purpose != kControlPurpose) return {};
  const bool is_start = identity.epoch == membership_.epoch && epoch_ == membership_.epoch;
  if (controls_[static_cast<std::size_t>(identity.rank)] || (members_->is_member(identity.rank) && !is_start)) {
    return fail(ErrorCode::kRefused, "there is a rank {} already", identity.rank);
  }
  if (announced_leave_) return fail(ErrorCode::kRefused, "the job is at its end");
  return {};
}

Result<std::unique_ptr<Connection>> WatchedSession::connect(int peer, std::uint32_t purpose, const Deadline& deadline) {
  if (peer < 0 || peer >= membership_.size() || peer == membership_.rank || purpose >= kQuestionPurpose) {
    return fail(ErrorCode::kInvalidInput, "rank {} cannot connect to rank {} of {} for purpose {}", membership_.rank,
                peer, membership_.size(), purpose);
  }
  const auto timed_out = [&](const std::string& last) {
    return fail(Error{ErrorCode::kTimeout,
                      fmt::format("rank {} did not connect for purpose {} within {:.3g} s{}; last seen: {}", peer,
                                  purpose, deadline.allowed(), last, last_seen(peer)),
                      peer});
  };
  if (membership_.rank < peer) {
    auto arrival = arrivals_.take({epoch_, peer, purpose}, deadline, [&] { return is_in_vain(peer); });
    if (arrival) return arrival;
    if (health_.failed()) return fail(health_.failure());
    if (const auto left = find_left()) return fail(*left);
    return timed_out("");
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
    Claim listener = claim;  // listens from its first epoch on, for all
    listener.identity.epoch = std::max(epoch, claim.identity.epoch);
    MOTLEY_TRY(judge_peer(listener));
    if (claim.identity.rank == peer) return {};
    return fail(ErrorCode::kRefused, "rank {} answers where rank {} was expected", claim.identity.rank, peer);
  };
  Claim own = own_claim(options_, membership_, purpose);
  own.identity.epoch = epoch;
  auto host = connect_and_authenticate(
      {member.address, member.port}, secret_, own, check, options_.encryption, deadline,
      [&] { return is_in_vain(peer); },
      [&](const Error& error) { return is_in_vain(peer) || error.code == ErrorCode::kRefused; });
  if (host) {
    Identity identity = host->claim.identity;
    identity.purpose = purpose;
    identity.epoch = epoch;
    return std::make_unique<Connection>(std::move(host->channel), std::move(identity), has_checksums(member));
  }
  if (health_.failed()) return fail(health_.failure());
  if (peers_.has_left(peer)) return fail(*find_left());
  if (host.error().code != ErrorCode::kRefused) return fail(Error{ErrorCode::kTimeout, host.error().message, peer});
  const Error refused{ErrorCode::kRefused, host.error().message, peer};
  // The peer may be in an epoch that this rank is about to learn of.
  return fail(options_.is_elastic && purpose != kControlPurpose ? first_cause(*this, refused) : refused);
}

Result<RunningJob> ask_who_is_there(const Endpoint& endpoint, const SessionOptions& options, const Secret& secret,
                                    const Deadline& deadline) {
  const Claim own = own_claim(options, {}, kQuestionPurpose);
  MOTLEY_ASSIGN(Host host, connect_and_authenticate(
                               endpoint, secret, own, [&](const Claim& peer) { return check_same_job(own, peer); },
                               options.encryption, deadline, {},
                               [](const Error& error) { return error.code == ErrorCode::kRefused; }));
  Connection connection(std::move(host.channel), host.claim.identity, true);
  MOTLEY_ASSIGN(const Message answer, connection.receive(deadline, "who is there"));
  if (answer.header.type != kRunning) {
    return fail(ErrorCode::kCorrupt, "{} sent a message of unknown type {:#x}", connection.peer_name(),
                answer.header.type);
  }
  MOTLEY_ASSIGN(RunningJob running, decode_running_job(answer.payload));
  // Who listens at every address, or said so of itself, is where it was reached.
  Member& member = running.membership.members[static_cast<std::size_t>(running.membership.rank)];
  if (member.address.empty()) member.address = endpoint.host;
  return running;
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
    if (members_) members_->add_to(waits_);
    askers_.add_to(waits_);
    waits_.wait();
    const double late = monotonic_seconds() - next_beat_;
    if (late > options_.silence_seconds / 2) peers_.forgive(late);
    take_requests();
    for (int rank = 0; rank < membership_.size(); ++rank) receive_from(rank);
    if (members_) watch_members();
    acceptor_.step([this](Acceptor::PendingConnection pending) { admit(std::move(pending)); });
    askers_.step();
    if (monotonic_seconds() >= next_beat_) {
      next_beat_ = monotonic_seconds() + beat_seconds_;
      beat();
    }
    if (const auto verdict = suspicion_.find_verdict(monotonic_seconds())) settle(*verdict);
    health_.set_agreed(!members_ || !members_->roster().has_lost());
    running = requests_.publish(list_controls(), std::ranges::none_of(controls_, [](const auto& control) {
                                  return control && control->wants_to_write();
                                }));
  }
  finish();
}

void WatchedSession::take_requests() {
  auto [reports, controls, ready, leaves, renews] = requests_.take();
  for (SessionRequests::Control& made : controls) {
    if (made.member) {
      members_->arrive(made.peer, std::move(*made.member));
      members_->roster().reach(made.peer);
    }
    peers_.receive_from(made.peer);
    controls_[static_cast<std::size_t>(made.peer)] = std::move(made.connection);
  }
  for (const int rank : ready) {
    auto& control = controls_[static_cast<std::size_t>(rank)];
    if (control) control->post_owned(kReady, 0, encode_message(ready));
  }
  for (AbortMessage& report : reports) {
    if (members_ && !members_->is_member(membership_.rank)) {  // the job goes on without it
      settle(report);
      continue;
    }
    for (std::size_t rank = 0; rank < (members_ ? controls_.size() : std::size_t{membership_.rank != 0}); ++rank) {
      if (controls_[rank]) controls_[rank]->post_owned(kAbort, 0, encode_message(report));
    }
    consider(std::move(report), false);
  }
  if (renews && members_) apply(members_->roster().renew(monotonic_seconds()));
  if (leaves && !announced_leave_) {
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
    return lose(rank, fmt::format("has been silent for more than {:.3g} s", options_.silence_seconds));
  }
  // Rank 0 hears it, and this one does not: what is between them is broken.
  if (const double bound = kUnheardSilences * options_.silence_seconds; peers_.unheard_seconds(rank) > bound) {
    return lose(rank, fmt::format("cannot be heard here for more than {:.3g} s, though rank 0 hears it", bound));
  }
  if (const double patience = patience_with(rank); members_ && peers_.stuck_seconds(rank) > patience) {
    lose(rank, peers_.is_recording(rank)
                   ? fmt::format("has recorded a step for more than {:.3g} s", patience)
                   : fmt::format("has computed for more than {:.3g} s without progress", patience));
  }
}

// Seconds that a rank may be busy without any progress.
double WatchedSession::patience_with(int rank) const {
  if (!peers_.is_recording(rank)) return patience();
  return options_.recording_seconds > 0 ? options_.recording_seconds : kForEver;
}

double WatchedSession::patience() const {
  if (!options_.is_elastic) return kForEver;
  if (options_.progress_seconds > 0) return options_.progress_seconds;
  const double step = peers_.step_seconds();
  return step > 0 ? std::max(kProgressSeconds, kProgressSteps * step) : kForEver;
}

void WatchedSession::handle(int rank, const Message& message) {
  auto& control = controls_[static_cast<std::size_t>(rank)];
  peers_.receive_from(rank);
  const int type = message.header.type;
  if (members_ && members_->is_member(membership_.rank) && !members_->is_member(rank) && type != kHeartbeat) {
    const Status received = receive_newcomer(rank, message);
    return received ? void() : lose(rank, fmt::format("was cut off: {}", received.error().message));
  }
  switch (type) {
    case kHeartbeat: {
      const auto heartbeats = decode_message<std::vector<Heartbeat>>(message.payload, "heartbeat");
      if (!heartbeats) return lose(rank, fmt::format("was cut off: {}", heartbeats.error().message));
      return peers_.receive_from(rank, *heartbeats);
    }
    case kAbort: {
      auto report = decode_message<AbortMessage>(message.payload, "abort");
      if (!report) return lose(rank, fmt::format("was cut off: {}", report.error().message));
      if (rank == 0 || members_) return settle(*report);
      report->reporter = rank;
      return consider(std::move(*report), false);
    }
    case kLeave: {
      peers_.receive_leave(rank);
      // A rank says nothing after this, so the lower one may close; the other waits for it to do so. Who is no member
      // yet has nothing more to wait for.
      if (membership_.rank < rank || (members_ && !members_->is_member(membership_.rank))) control.reset();
      return;
    }
    case kReady:
      return;  // others have heard of it before, and have taken it in
    case kRoster: {
      const auto word = decode_message<RosterMessage>(message.payload, "roster");
      if (!word || !members_) return lose(rank, "was cut off: it sent a malformed word about who is there");
      return apply(members_->roster().receive(rank, *word, monotonic_seconds()));
    }
    default:
      return lose(rank, fmt::format("was cut off: it sent a message of unknown type {:#x}", message.header.type));
  }
}

// What comes from who is no member yet.
Status WatchedSession::receive_newcomer(int rank, const Message& message) {
  if (message.header.type == kJoin) {
    MOTLEY_ASSIGN(JoinMessage join, decode_message<JoinMessage>(message.payload, "join"));
    if (join.size != membership_.size()) {
      return fail(ErrorCode::kRefused, "rank {} was started for a job of {} ranks, this one has {}", rank, join.size,
                  membership_.size());
    }
    const auto& control = controls_[static_cast<std::size_t>(rank)];
    if (join.member.address.empty()) join.member.address = remote_endpoint(control->socket()).host;
    members_->arrive(rank, std::move(join.member));
    control->post_owned(kJoin, 0, {});
    return {};
  }
  if (message.header.type != kReady) {
    return fail(ErrorCode::kCorrupt, "it sent a message of type {:#x}, and is no member", message.header.type);
  }
  MOTLEY_ASSIGN(const std::vector<int> connected, decode_message<std::vector<int>>(message.payload, "ready", kRank));
  // Else it will find out and ask again.
  if (std::ranges::includes(connected, members_->roster().epoch().members) && members_->member(rank).port != 0) {
    apply(members_->roster().admit(rank, monotonic_seconds()));
  }
  return {};
}

void WatchedSession::lose(int rank, const std::string& how) {
  const bool left = (membership_.rank > rank && announced_leave_) || peers_.has_left(rank);
  // Before it can see that its connection is closed: it would take this rank for lost, and kill it.
  if (!left && members_ && members_->is_member(rank) && members_->is_member(membership_.rank)) members_->kill(rank);
  controls_[static_cast<std::size_t>(rank)].reset();
  if (left) return;
  if (members_ && !members_->is_member(rank)) return members_->forget(rank);
  const Error error{ErrorCode::kPeerLost, fmt::format("rank {} {}; last seen: {}", rank, how, last_seen(rank)), rank};
  if (!members_) return consider({membership_.rank, error}, true);
  if (members_->is_member(membership_.rank)) health_.break_off(error, false);
  apply(members_->roster().lose(rank, monotonic_seconds()));
}

void WatchedSession::watch_members() {
  for (const int rank : members_->take_ended(waits_)) {
    receive_from(rank);  // its last words
    if (controls_[static_cast<std::size_t>(rank)]) lose(rank, "ended");
    if (members_->roster().is_lost(rank)) apply(members_->roster().bury(rank, monotonic_seconds()));
  }
  if (monotonic_seconds() >= members_->roster().next()) apply(members_->roster().tick(monotonic_seconds()));
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
    } else if (const auto* install_next = std::get_if<Roster::Install>(&action)) {
      install(install_next->epoch);
    } else {
      health_.break_off({ErrorCode::kPeerLost, std::get<Roster::Stop>(action).reason, membership_.rank}, true);
    }
  }
}

void WatchedSession::install(const Epoch& epoch) {
  const auto is_in = [](const std::vector<int>& ranks, int rank) { return std::ranges::binary_search(ranks, rank); };
  const std::vector<int> before = members_->enter(epoch);
  for (const int rank : before) {
    auto& control = controls_[static_cast<std::size_t>(rank)];
    if (rank == membership_.rank || is_in(epoch.members, rank) || !control) continue;
    (void)control->progress();  // it is told
    control.reset();
    if (is_in(before, membership_.rank)) members_->kill(rank);
  }
  if (!is_in(epoch.members, membership_.rank)) return;
  std::map<int, Member> newcomers;
  std::vector<int> missing;
  for (const int rank : epoch.members) {
    if (!is_in(before, rank)) newcomers.emplace(rank, members_->member(rank));
    if (rank != membership_.rank && !controls_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  health_.install(epoch, newcomers);
  for (const int rank : missing) {
    if (!members_->roster().is_lost(rank)) lose(rank, "has gone as soon as it was a member");
    if (is_in(before, membership_.rank) && members_->has_ended(rank)) {
      apply(members_->roster().bury(rank, monotonic_seconds()));
    }
  }
}

void WatchedSession::consider(AbortMessage report, bool seen_directly) {
  if (health_.failed() && !members_) return;
  if (const auto verdict = suspicion_.consider(std::move(report), seen_directly, monotonic_seconds())) settle(*verdict);
}

void WatchedSession::settle(const AbortMessage& verdict) {
  suspicion_.clear();
  if (health_.is_final()) return;
  if (membership_.rank == 0 && (!members_ || members_->is_member(0))) {
    for (auto& control : controls_) {
      if (control) {
        control->post_owned(kAbort, 0, encode_message(verdict));
        (void)control->progress();
      }
    }
  }
  health_.break_off(verdict.error, true);
}

void WatchedSession::admit(Acceptor::PendingConnection pending) {
  if (!pending.accepted) return;
  const int peer = pending.claim.identity.rank;
  const std::uint32_t purpose = pending.claim.identity.purpose;
  const std::uint64_t epoch = pending.claim.identity.epoch;
  if (purpose == kQuestionPurpose) {
    Identity identity = std::move(pending.claim.identity);
    identity.session = membership_.session;
    identity.epoch = membership_.epoch;
    auto asker = std::make_unique<Connection>(std::move(pending.channel), std::move(identity), true);
    asker->post_owned(kRunning, 0,
                      encode_message(RunningJob{members_->membership(), members_->roster().epoch().members}));
    askers_.add(std::move(asker), kAnswerSeconds);
    return;
  }
  const Member& member = members_ ? members_->member(peer) : membership_.members[static_cast<std::size_t>(peer)];
  auto connection = std::make_unique<Connection>(std::move(pending.channel), std::move(pending.claim.identity),
                                                 purpose == kControlPurpose || has_checksums(member));
  if (purpose == kControlPurpose) {
    if (!members_->is_member(peer)) peers_.reset(peer);
    if (!members_->roster().is_lost(peer)) controls_[static_cast<std::size_t>(peer)] = std::move(connection);
    return;
  }
  arrivals_.put({epoch, peer, purpose}, std::move(connection));
}

void WatchedSession::beat() {
  if (announced_leave_ && membership_.rank != 0) return;
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
    while (health_.failed() && control && !deadline.passed()) {
      const auto message = control->try_receive();
      if (!message) break;
      if (!*message) wait_for(control->descriptor(), POLLIN, deadline.remaining_milliseconds());
    }
    control.reset();
  }
}

}  // namespace motley::net
