// The two sides of the rendezvous.
#include "motley/net/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/net/acceptor.h"
#include "motley/net/host.h"
#include "motley/net/messages.h"
#include "motley/net/socket.h"

namespace motley::net {
namespace {

constexpr double kFarewellSeconds = 5;  // to send the membership, or why there is none
// How much longer than its own patience a rank waits for rank 0's word on who is missing.
constexpr double kVerdictSeconds = 2;

Claim own_claim(const SessionOptions& options, std::uint64_t session) {
  return {.identity = {.job = options.job,
                       .tenant = options.tenant,
                       .rank = options.rank,
                       .session = session,
                       .epoch = session == 0 ? std::uint64_t{0} : std::uint64_t{1},
                       .purpose = kControlPurpose},
          .fingerprint = options.fingerprint};
}

// The member's address is left empty where the listener is bound to every address: rank 0 then sees where it comes
// from.
Result<std::pair<Descriptor, Member>> open_data_listener(const SessionOptions& options) {
  MOTLEY_ASSIGN(Descriptor listener, listen_at({options.bind_host, 0}));
  const Endpoint bound = local_endpoint(listener);
  Member member{host_id(), is_any_address(bound.host) ? "" : bound.host, bound.port, ::getpid()};
  return std::pair(std::move(listener), std::move(member));
}

std::string join_numbers(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// Rank 0's view of those who come.
class RendezvousHost {
 public:
  RendezvousHost(const SessionOptions& options, const Secret& secret, Descriptor listener, std::uint64_t session)
      : options_(options),
        own_(own_claim(options, session)),
        where_(local_endpoint(listener)),
        acceptor_(std::move(listener), secret, own_, [this](const Claim& peer) { return judge(peer); }),
        controls_(static_cast<std::size_t>(options.size)),
        joins_(static_cast<std::size_t>(options.size)) {}

  Status wait_for_all(const Deadline& deadline) {
    std::vector<int> reported;
    WaitSet waits;
    for (;;) {
      acceptor_.add_to(waits);
      for (const auto& control : controls_) {
        if (control) waits.add(*control);
      }
      waits.end_at(deadline.at());
      waits.wait();
      receive_joins();
      for (Acceptor::PendingConnection& pending : acceptor_.step()) {
        receive(std::move(pending));
      }
      receive_joins();
      if (fatal_) {
        return send_failure(*fatal_);
      }
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) {
        return {};
      }
      if (deadline.passed()) {
        return send_failure(missing_error(missing));
      }
      if (missing != reported) {
        reported = missing;
        for (auto& control : controls_) {
          if (control) {
            control->post_owned(kWaiting, 0, encode(missing));
          }
        }
      }
    }
  }

  const Member& member(int rank) const { return joins_[static_cast<std::size_t>(rank)]->member; }
  TcpConnection& control(int rank) { return *controls_[static_cast<std::size_t>(rank)]; }
  std::vector<std::unique_ptr<TcpConnection>> take_controls() { return std::move(controls_); }

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
    if (same && (rank < 1 || rank >= options_.size)) {
      same = fail(ErrorCode::kRefused, "rank {} wants to join; this job has ranks 0 to {}", rank, options_.size - 1);
    }
    if (!same) {
      if (same_job) {
        fatal_ = same.error();
        fatal_->rank = rank;
      }
      return same;
    }
    if (const auto& existing = controls_[static_cast<std::size_t>(rank)]) {
      return fail(ErrorCode::kRefused, "rank {} has joined already ({}); was it started twice?", rank,
                  existing->peer_name());
    }
    return {};
  }

  void receive(Acceptor::PendingConnection pending) {
    const int rank = pending.claim.identity.rank;
    if (pending.accepted && controls_[static_cast<std::size_t>(rank)]) {
      return;  // two at the same moment: the first one stays
    }
    if (!pending.accepted) {
      spdlog::warn("turned away a connection from {}: {}", pending.address, pending.accepted.error().message);
      if (pending.accepted.error().code == ErrorCode::kRefused && rank < options_.size) {
        turned_away_[rank] = fmt::format("a connection from {} that claimed to be rank {} was refused: {}",
                                         pending.address, rank, pending.accepted.error().message);
      }
      return;
    }
    Identity peer = pending.claim.identity;
    peer.session = own_.identity.session;
    peer.epoch = own_.identity.epoch;
    controls_[static_cast<std::size_t>(rank)] =
        std::make_unique<TcpConnection>(std::move(pending.socket), std::move(peer), true);
  }

  void receive_joins() {
    for (int rank = 1; rank < options_.size; ++rank) {
      auto& control = controls_[static_cast<std::size_t>(rank)];
      if (control && !receive_join(rank, *control)) {
        control.reset();
        joins_[static_cast<std::size_t>(rank)].reset();
      }
    }
  }

  // False if the rank has gone again; its place is then free for another attempt.
  bool receive_join(int rank, TcpConnection& control) {
    if (!control.progress()) {
      return false;
    }
    const auto message = control.try_receive();
    if (!message) {
      return false;
    }
    if (!message->has_value()) {
      return true;
    }
    auto join = decode_join((*message)->payload);
    if ((*message)->header.type != kJoin || !join || joins_[static_cast<std::size_t>(rank)]) {
      return false;
    }
    if (join->size != options_.size) {
      fatal_ = Error{
          ErrorCode::kRefused,
          fmt::format("rank {} was started for a job of {} ranks, rank 0 for {}", rank, join->size, options_.size),
          rank};
      return true;
    }
    if (join->member.address.empty()) {
      join->member.address = remote_endpoint(control.socket()).host;
    }
    joins_[static_cast<std::size_t>(rank)] = std::move(*join);
    return true;
  }

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.size; ++rank) {
      if (!joins_[static_cast<std::size_t>(rank)]) {
        missing.push_back(rank);
      }
    }
    return missing;
  }

  Error missing_error(const std::vector<int>& missing) const {
    Error error{ErrorCode::kTimeout,
                fmt::format("{} did not join within {:.3g} s; rank 0 waits at {}", join_numbers(missing),
                            options_.join_seconds, to_string(where_)),
                missing.front()};
    for (const int rank : missing) {
      if (const auto found = turned_away_.find(rank); found != turned_away_.end()) {
        error.code = ErrorCode::kRefused;
        error.message += "; " + found->second;
      }
    }
    return error;
  }

  Status send_failure(const Error& error) {
    const Deadline deadline = Deadline::after(kFarewellSeconds);
    for (auto& control : controls_) {
      if (control) {
        control->post_owned(kAbort, 0, encode(AbortMessage{0, error}));
        while (control->progress() && control->wants_to_write() && !deadline.passed()) {
          wait_for(control->descriptor(), POLLOUT, 50);
        }
        control->finish_sending();
      }
    }
    return fail(error);
  }

  const SessionOptions& options_;
  Claim own_;
  Endpoint where_;
  Acceptor acceptor_;
  std::vector<std::unique_ptr<TcpConnection>> controls_;
  std::vector<std::optional<JoinMessage>> joins_;
  std::map<int, std::string> turned_away_;
  std::optional<Error> fatal_;
};

}  // namespace

Result<Gathering> gather(const SessionOptions& options, const Secret& secret) {
  const Deadline deadline = Deadline::after(options.join_seconds);
  MOTLEY_ASSIGN(Descriptor listener, listen_at(options.rendezvous));
  if (options.publish) {
    Endpoint bound = local_endpoint(listener);
    if (!is_any_address(bound.host)) {
      bound.host = options.rendezvous.host;
    }
    MOTLEY_TRY(options.publish(bound));
  }
  MOTLEY_ASSIGN(auto data, open_data_listener(options));

  Gathering gathering;
  gathering.data_listener = std::move(data.first);
  Membership& membership = gathering.membership;
  while (membership.session == 0) {
    fill_random(std::as_writable_bytes(std::span(&membership.session, 1)));
  }
  membership.epoch = 1;
  membership.members.push_back(std::move(data.second));

  RendezvousHost host(options, secret, std::move(listener), membership.session);
  MOTLEY_TRY(host.wait_for_all(deadline));

  // Where rank 0, or a rank on its machine that came over loopback, listens on every address, others reach it where
  // they reached rank 0.
  for (int rank = 1; rank < options.size; ++rank) {
    membership.members.push_back(host.member(rank));
  }
  Member& own = membership.members.front();
  if (own.address.empty()) {
    own.address = options.size > 1 ? local_endpoint(host.control(1).socket()).host : "127.0.0.1";
    for (int rank = 1; rank < options.size; ++rank) {
      const std::string reached = local_endpoint(host.control(rank).socket()).host;
      if (membership.members[static_cast<std::size_t>(rank)].host_id != own.host_id) {
        own.address = reached;
      }
    }
  }
  for (Member& member : membership.members) {
    if (!membership.on_one_host() && member.host_id == own.host_id && is_loopback(member.address).value_or(false)) {
      member.address = own.address;
    }
  }

  gathering.controls = host.take_controls();
  const Deadline reported = Deadline::after(kFarewellSeconds);
  for (int rank = 1; rank < options.size; ++rank) {
    TcpConnection& control = *gathering.controls[static_cast<std::size_t>(rank)];
    membership.rank = rank;
    control.post_owned(kMembership, 0, encode(membership));
    while (control.wants_to_write()) {
      MOTLEY_TRY(control.progress());
      if (reported.passed()) {
        return fail(Error{ErrorCode::kTimeout, control.peer_name() + ": it did not take the membership", rank});
      }
      if (control.wants_to_write()) {
        wait_for(control.descriptor(), POLLOUT, 50);
      }
    }
  }
  membership.rank = 0;
  return gathering;
}

Result<Gathering> attend(const SessionOptions& options, const Secret& secret) {
  const Deadline deadline = Deadline::after(options.join_seconds);
  MOTLEY_ASSIGN(auto data, open_data_listener(options));
  const std::string where = to_string(options.rendezvous);
  const Claim own = own_claim(options, 0);
  const auto check = [&own, &options](const Claim& peer) -> Status {
    MOTLEY_TRY(check_same_job(own, peer));
    if (peer.identity.rank != 0 || peer.identity.session == 0 || peer.identity.purpose != kControlPurpose) {
      return fail(ErrorCode::kRefused, "what listens at {} is rank {} of a running session, not rank 0 of a start",
                  to_string(options.rendezvous), peer.identity.rank);
    }
    return {};
  };

  std::optional<Host> host;
  double pause = 0.02;
  for (Error last; !host;) {
    auto pending = connect_and_authenticate(options.rendezvous, secret, own, check, deadline);
    if (pending) {
      host = std::move(*pending);
      break;
    }
    last = pending.error();
    if (last.code == ErrorCode::kRefused || last.code == ErrorCode::kInvalidInput) {
      last.rank = 0;
      return fail(last.within("joining rank 0"));
    }
    if (deadline.remaining() <= pause) {
      return fail(Error{
          ErrorCode::kTimeout,
          fmt::format("rank 0 did not answer at {} within {:.3g} s: {}", where, options.join_seconds, last.message),
          0});
    }
    SteadyClock::instance().sleep_until(monotonic_seconds() + pause);
    pause = std::min(1.0, 2 * pause);
  }

  auto control = std::make_unique<TcpConnection>(std::move(host->socket), host->claim.identity, true);
  const auto join = encode(JoinMessage{options.size, data.second});
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
        MOTLEY_ASSIGN(const std::vector<int> missing, decode_waiting(message->payload));
        waits_for = join_numbers(missing);
        break;
      }
      case kAbort: {
        MOTLEY_ASSIGN(AbortMessage abort, decode_abort(message->payload));
        return fail(std::move(abort.error));
      }
      case kMembership: {
        MOTLEY_ASSIGN(Membership membership, decode_membership(message->payload));
        if (membership.session != control->peer().session || membership.epoch != control->peer().epoch ||
            membership.rank != options.rank || membership.size() != options.size) {
          return fail(ErrorCode::kCorrupt, "rank 0 sent a membership of {} ranks for rank {} to rank {} of {}",
                      membership.size(), membership.rank, options.rank, options.size);
        }
        Gathering gathering{std::move(membership), std::move(data.first), {}};
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

}  // namespace motley::net
