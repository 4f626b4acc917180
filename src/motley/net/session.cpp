// How ranks find each other: rank 0 gathers, the others attend. Both end with the same membership and with the control
// connections over which the session goes on.
#include "motley/net/session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/net/admission.h"
#include "motley/net/certificates.h"
#include "motley/net/messages.h"
#include "motley/net/region.h"
#include "motley/net/socket.h"
#include "motley/net/watched_session.h"

namespace motley::net {
namespace {

constexpr int kUnknownRank = -1;        // of a connection that was refused before it said
constexpr double kFarewellSeconds = 5;  // to send the membership, or why there is none
// A member of a running job answers within so many; one that does not may be gone, and another one be there.
constexpr double kRunningSeconds = 2;
// How much longer than its own patience a rank waits for rank 0's word on who is missing.
constexpr double kVerdictSeconds = 2;

// The member's address is left empty where the listener is bound to every address: rank 0 then sees where it comes
// from.
Result<std::pair<Descriptor, Member>> open_data_listener(const SessionOptions& options) {
  MOTLEY_ASSIGN(Descriptor listener, listen_at({options.bind_host, 0}));
  const Endpoint bound = local_endpoint(listener);
  Member member{host_id(), is_any_address(bound.host) ? "" : bound.host, bound.port, ::getpid()};
  return std::pair(std::move(listener), std::move(member));
}

// Rank 0's view of those who come.
class RendezvousHost {
 public:
  RendezvousHost(const SessionOptions& options, const Secret& secret, Descriptor listener, const Membership& membership)
      : options_(options),
        own_(own_claim(options, membership, kControlPurpose)),
        where_(local_endpoint(listener)),
        acceptor_(
            std::move(listener), secret, own_, [this](const Claim& peer) { return judge(peer); }, options.encryption) {}

  Status wait_for_all(const Deadline& deadline) {
    std::vector<int> reported;
    WaitSet waits;
    for (;;) {
      acceptor_.add_to(waits);
      for (const auto& [rank, joiner] : joiners_) waits.add(*joiner.control);
      waits.end_at(deadline.at());
      waits.wait();
      receive_joins();
      acceptor_.step([this](Acceptor::PendingConnection pending) { receive(std::move(pending)); });
      receive_joins();
      if (fatal_) return send_failure(*fatal_);
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) return {};
      if (deadline.passed()) return send_failure(missing_error(missing));
      if (missing == reported) continue;
      reported = missing;
      for (auto& [rank, joiner] : joiners_) joiner.control->post_owned(kWaiting, 0, encode_message(missing));
    }
  }

  struct Joiner {
    std::unique_ptr<Connection> control;
    std::optional<JoinMessage> join;
  };
  std::map<int, Joiner> take_joiners() { return std::move(joiners_); }  // by rank

 private:
  // Whoever gets here knows the secret. A rank of this job that was started differently ends the start for all, since
  // waiting on would not help; a second process for the same rank, or a rank of another job, is only turned away.
  Status judge(const Claim& peer) {
    const int rank = peer.identity.rank;
    if (peer.identity.purpose != kControlPurpose || peer.identity.session != 0) {
      return fail(ErrorCode::kRefused, "this is the rendezvous of a job's start, not of a running session");
    }
    Status same = check_same_job(own_, peer);
    const bool same_job = peer.identity.job == own_.identity.job && peer.identity.tenant == own_.identity.tenant;
    if (same && (rank < 1 || rank >= options_.first_ranks())) {
      same = fail(ErrorCode::kRefused, "rank {} wants to join; this job has ranks 0 to {}", rank,
                  options_.first_ranks() - 1);
    }
    if (!same) {
      if (same_job) {
        fatal_ = same.error();
        fatal_->rank = rank;
      }
      return same;
    }
    if (const auto existing = joiners_.find(rank); existing != joiners_.end()) {
      return fail(ErrorCode::kRefused, "rank {} has joined already ({}); was it started twice?", rank,
                  existing->second.control->peer_name());
    }
    return {};
  }

  void receive(Acceptor::PendingConnection pending) {
    const int rank = pending.claim.identity.rank;
    if (!pending.accepted) {
      if (pending.accepted.error().code != ErrorCode::kRefused) return;
      const bool claims = rank > 0 && rank < options_.size;
      turned_away_[claims ? rank : kUnknownRank] =
          fmt::format("a connection from {}{} was refused: {}", pending.address,
                      claims ? fmt::format(" that claimed to be rank {}", rank) : "", pending.accepted.error().message);
      return;
    }
    Identity peer = pending.claim.identity;
    peer.session = own_.identity.session;
    peer.epoch = own_.identity.epoch;
    joiners_[rank].control = std::make_unique<Connection>(std::move(pending.channel), std::move(peer), true);
  }

  void receive_joins() {
    for (auto joiner = joiners_.begin(); joiner != joiners_.end();) {
      joiner = receive_join(joiner->first, joiner->second) ? std::next(joiner) : joiners_.erase(joiner);
    }
  }

  // False if the rank has gone again; its place is then free for another attempt.
  bool receive_join(int rank, Joiner& joiner) {
    if (!joiner.control->progress()) return false;
    const auto message = joiner.control->try_receive();
    if (!message) return false;
    if (!message->has_value()) return true;
    auto join = decode_message<JoinMessage>((*message)->payload, "join");
    if ((*message)->header.type != kJoin || !join || joiner.join) return false;
    if (join->size != options_.size) {
      fatal_ = Error{
          ErrorCode::kRefused,
          fmt::format("rank {} was started for a job of {} ranks, rank 0 for {}", rank, join->size, options_.size),
          rank};
      return true;
    }
    if (join->member.address.empty()) join->member.address = remote_endpoint(joiner.control->socket()).host;
    joiner.join = std::move(*join);
    return true;
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.first_ranks(); ++rank) {
      if (const auto joiner = joiners_.find(rank); joiner == joiners_.end() || !joiner->second.join)
        missing.push_back(rank);
    }
    return missing;
  }

  Error missing_error(const std::vector<int>& missing) const {
    Error error{ErrorCode::kTimeout,
                fmt::format("{} did not join within {:.3g} s; rank 0 waits at {}", format_ranks(missing),
                            options_.join_seconds, to_string(where_)),
                missing.front()};
    const auto add = [&](int rank) {
      if (const auto found = turned_away_.find(rank); found != turned_away_.end()) {
        error.code = ErrorCode::kRefused;
        error.message += "; " + found->second;
      }
    };
    std::ranges::for_each(missing, add);
    if (error.code != ErrorCode::kRefused) add(kUnknownRank);
    return error;
  }

  Status send_failure(const Error& error) {
    const Deadline deadline = Deadline::after(kFarewellSeconds);
    for (auto& [rank, joiner] : joiners_) {
      joiner.control->post_owned(kAbort, 0, encode_message(AbortMessage{0, error}));
      (void)joiner.control->flush(deadline, "why the job does not start");
      joiner.control->finish_sending();
    }
    return fail(error);
  }

  const SessionOptions& options_;
  Claim own_;
  Endpoint where_;
  Acceptor acceptor_;
  std::map<int, Joiner> joiners_;
  std::map<int, std::string> turned_away_;
  std::optional<Error> fatal_;
};

Result<Gathering> gather(const SessionOptions& options, const Secret& secret) {
  const Deadline deadline = Deadline::after(options.join_seconds);
  MOTLEY_ASSIGN(Descriptor listener, listen_at(options.rendezvous));
  if (options.publish) {
    Endpoint bound = local_endpoint(listener);
    if (!is_any_address(bound.host)) bound.host = options.rendezvous.host;
    MOTLEY_TRY(options.publish(bound));
  }
  MOTLEY_ASSIGN(auto data, open_data_listener(options));

  Gathering gathering;
  gathering.data_listener = std::move(data.first);
  Membership& membership = gathering.membership;
  while (membership.session == 0) fill_random(std::as_writable_bytes(std::span(&membership.session, 1)));
  membership.epoch = 1;
  membership.members.push_back(std::move(data.second));

  RendezvousHost host(options, secret, std::move(listener), membership);
  MOTLEY_TRY(host.wait_for_all(deadline));

  // Where rank 0, or a rank on its machine that came over loopback, listens on every address, others reach it where
  // they reached rank 0.
  auto joiners = host.take_joiners();
  std::string reached = "127.0.0.1";
  for (const auto& [rank, joiner] : joiners) {
    membership.members.push_back(joiner.join->member);
    const bool is_elsewhere = membership.members.back().host_id != membership.members[0].host_id;
    if (rank == 1 || is_elsewhere) reached = local_endpoint(joiner.control->socket()).host;
  }
  const Member own = membership.members[0];
  for (Member& member : membership.members) {
    if (member.address.empty() ||
        (!membership.on_one_host() && member.host_id == own.host_id && is_loopback(member.address).value_or(false))) {
      member.address = own.address.empty() ? reached : own.address;
    }
  }

  Member nobody = membership.members[0];  // on this host, as far as anybody knows
  nobody.port = 0;
  nobody.process = 0;
  membership.members.resize(static_cast<std::size_t>(options.size), nobody);

  gathering.controls.resize(static_cast<std::size_t>(options.size));
  const Deadline reported = Deadline::after(kFarewellSeconds);
  for (auto& [rank, joiner] : joiners) {
    membership.rank = rank;
    joiner.control->post_owned(kMembership, 0, encode_message(membership));
    MOTLEY_TRY(joiner.control->flush(reported, "the membership"));
    gathering.controls[static_cast<std::size_t>(rank)] = std::move(joiner.control);
  }
  membership.rank = 0;
  return gathering;
}

Result<Gathering> attend(const SessionOptions& options, const Secret& secret) {
  const Deadline deadline = Deadline::after(options.join_seconds);
  MOTLEY_ASSIGN(auto data, open_data_listener(options));
  const Claim own = own_claim(options, {}, kControlPurpose);
  const auto check = [&own, &options](const Claim& peer) -> Status {
    MOTLEY_TRY(check_same_job(own, peer));
    if (peer.identity.rank != 0 || peer.identity.session == 0 || peer.identity.purpose != kControlPurpose) {
      return fail(ErrorCode::kRefused, "what listens at {} is rank {} of a running session, not rank 0 of a start",
                  to_string(options.rendezvous), peer.identity.rank);
    }
    return {};
  };

  const auto is_final = [](const Error& error) {
    return error.code == ErrorCode::kRefused || error.code == ErrorCode::kInvalidInput;
  };
  auto host =
      connect_and_authenticate(options.rendezvous, secret, own, check, options.encryption, deadline, {}, is_final);
  if (!host) {
    const Error& last = host.error();
    return fail(Error{is_final(last) ? last.code : ErrorCode::kTimeout,
                      is_final(last) ? "joining rank 0: " + last.message
                                     : fmt::format("rank 0 did not answer at {} within {:.3g} s: {}",
                                                   to_string(options.rendezvous), options.join_seconds, last.message),
                      0});
  }

  auto control = std::make_unique<Connection>(std::move(host->channel), host->claim.identity, true);
  const auto join = encode_message(JoinMessage{options.size, data.second});
  MOTLEY_TRY(control->send(kJoin, 0, join, deadline, "the join message"));
  const Deadline verdict = Deadline::after(deadline.remaining() + kVerdictSeconds);
  std::string waits_for = "some ranks";
  for (;;) {
    auto message = control->receive(verdict, "the membership");
    if (!message) {
      Error error = message.error();
      error.message += fmt::format(" (rank 0 still waited for {})", waits_for);
      return fail(error);
    }
    switch (message->header.type) {
      case kWaiting: {
        MOTLEY_ASSIGN(const std::vector<int> missing,
                      decode_message<std::vector<int>>(message->payload, "waiting", kRank));
        waits_for = format_ranks(missing);
        break;
      }
      case kAbort: {
        MOTLEY_ASSIGN(AbortMessage abort, decode_message<AbortMessage>(message->payload, "abort"));
        return fail(std::move(abort.error));
      }
      case kMembership: {
        MOTLEY_ASSIGN(Membership membership, decode_membership(message->payload));
        if (membership.session != control->peer().session || membership.epoch != control->peer().epoch ||
            membership.rank != options.rank || membership.size() != options.size) {
          return fail(ErrorCode::kCorrupt, "rank 0 sent a membership of {} ranks for rank {} to rank {} of {}",
                      membership.size(), membership.rank, options.rank, options.size);
        }
        Gathering gathering{std::move(membership), std::move(data.first), {}, {}};
        gathering.controls.resize(static_cast<std::size_t>(options.size));
        gathering.controls[0] = std::move(control);
        return gathering;
      }
      default:
        return fail(ErrorCode::kCorrupt, "{} sent a message of unknown type {:#x}", control->peer_name(),
                    message->header.type);
    }
  }
}

// A job that runs.
Result<Gathering> find_running(const SessionOptions& options, const Secret& secret) {
  const Deadline deadline = Deadline::after(std::min(options.join_seconds, kRunningSeconds));
  MOTLEY_ASSIGN(auto data, open_data_listener(options));
  auto running = ask_who_is_there(options.rendezvous, options, secret, deadline);
  if (!running) {
    return fail(running.error().code, "no member of the job answers at {}: {}", to_string(options.rendezvous),
                running.error().message);
  }
  Membership& membership = running->membership;
  if (membership.size() != options.size) {
    return fail(ErrorCode::kRefused, "rank {} was started for a job of {} ranks, the one at {} has {}", options.rank,
                options.size, to_string(options.rendezvous), membership.size());
  }
  membership.rank = options.rank;
  membership.members[static_cast<std::size_t>(options.rank)] = std::move(data.second);
  std::erase(running->present, options.rank);  // its predecessor, of whose end they may not know yet
  Gathering gathering{std::move(membership), std::move(data.first), {}, std::move(running->present)};
  gathering.controls.resize(static_cast<std::size_t>(options.size));
  return gathering;
}

Status check_bind(const std::string& host, bool given_secret) {
  MOTLEY_ASSIGN(const bool loopback, is_loopback(host));
  if (!loopback && !given_secret) {
    return fail(
        ErrorCode::kInvalidInput,
        "listening at {} would be open to the network, which needs a secret that you chose: give every rank the "
        "same secret file (mode 0600) by --secret-file or {}, or listen on 127.0.0.1",
        host, kSecretFileVariable);
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
  if (options.starting < 0 || options.starting > options.size || (options.starting > 0 && !options.is_elastic)) {
    return fail(ErrorCode::kInvalidInput, "{} of {} ranks cannot begin a job", options.starting, options.size);
  }
  MOTLEY_TRY(check_names(own_claim(options, {}, 0)));
  MOTLEY_TRY(check_bind(options.bind_host, options.given_secret));
  if (options.rank == 0 && !options.is_newcomer) MOTLEY_TRY(check_bind(options.rendezvous.host, options.given_secret));
  return {};
}

}  // namespace

Result<Encryption> parse_encryption(const std::string& text, const std::string& what) {
  for (const auto& [name, encryption] :
       {std::pair("auto", Encryption::kAuto), {"on", Encryption::kOn}, {"off", Encryption::kOff}}) {
    if (text == name) return Encryption(encryption);
  }
  return fail(ErrorCode::kInvalidInput, "{}: '{}' is not one of auto, on, off", what, text);
}

Result<Encryption> encryption_from_environment() {
  const char* text = std::getenv(kEncryptionVariable);
  return read_encryption(text == nullptr ? "auto" : text, kEncryptionVariable, {}, {});
}

Claim own_claim(const SessionOptions& options, const Membership& membership, std::uint32_t purpose) {
  return {.identity = {.job = options.job,
                       .tenant = options.tenant,
                       .rank = options.rank,
                       .session = membership.session,
                       .epoch = membership.epoch,
                       .purpose = purpose},
          .fingerprint = options.fingerprint};
}

Result<std::unique_ptr<Session>> Session::join(const SessionOptions& options, const Secret& secret) {
  MOTLEY_TRY(check(options));
  MOTLEY_ASSIGN(Gathering gathering, options.is_newcomer ? find_running(options, secret)
                                     : options.rank == 0 ? gather(options, secret)
                                                         : attend(options, secret));
  if (!options.is_newcomer) {
    for (int rank = 0; rank < options.first_ranks(); ++rank) gathering.present.push_back(rank);
  }
  SessionOptions joined = options;
  joined.publish = {};
  auto session = std::make_unique<WatchedSession>(std::move(joined), secret, std::move(gathering));
  if (options.is_elastic && !options.is_newcomer)
    MOTLEY_TRY(session->connect_all(Deadline::after(options.join_seconds)));
  return session;
}

Result<std::vector<Epoch>> Session::regroup(const Deadline&) {
  return fail(ErrorCode::kUnavailable, "this session's ranks cannot change");
}

Error first_cause(const Session& session, const Error& seen) {
  const Deadline deadline = Deadline::after(5);  // on a busy machine, too; nobody waits so long where a cause is known
  for (;;) {
    if (const Status health = session.health(); !health) return health.error();
    if (deadline.passed()) return seen;
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.005);
  }
}

}  // namespace motley::net
