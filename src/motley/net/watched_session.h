// A session that has been joined, with the thread that watches over it.
//
// The watcher thread alone touches the control connections and the data listener. Other threads leave requests under
// the mutex and wake it; what it learns it leaves there for them. A failure, once settled, never changes, so that
// health() needs one atomic read where all is well.
//
// In an elastic session every rank has a control connection to every other one, and the roster (roster.h) decides who
// is there. A failure is then settled only if it is a rank's own; a change of ranks lasts until regroup(). Processes of
// this host that are lost are ended, so that nothing they do can matter any more.
//
// A newcomer asks a member who is there, connects to all of them, and says that it is ready. A member keeps the
// connection, and the roster proposes the newcomer for the next epoch. Until that is installed the newcomer is nobody:
// it may go again, and it loses nobody.
#pragma once

#include <atomic>
#include <optional>
#include <set>
#include <thread>

#include "motley/net/admission.h"
#include "motley/net/arrivals.h"
#include "motley/net/elastic_members.h"
#include "motley/net/lingering_connections.h"
#include "motley/net/messages.h"
#include "motley/net/peer_status.h"
#include "motley/net/session.h"
#include "motley/net/session_health.h"
#include "motley/net/session_requests.h"

namespace motley::net {

// Purposes of connections that are the session's own; data connections have smaller ones.
inline constexpr std::uint32_t kControlPurpose = 0xffffffffU;
inline constexpr std::uint32_t kQuestionPurpose = 0xfffffffeU;  // who is there? The answer is a RunningJob

// What this rank says of itself: of a membership that is not known yet, session and epoch are zero.
Claim own_claim(const SessionOptions& options, const Membership& membership, std::uint32_t purpose);

// Asks whoever listens there. kRefused where it is no member of this job, kTimeout where nobody answers.
Result<RunningJob> ask_who_is_there(const Endpoint& endpoint, const SessionOptions& options, const Secret& secret,
                                    const Deadline& deadline);

struct Gathering {
  Membership membership;
  Descriptor data_listener;
  // By rank. Rank 0 has one to each other rank, the others have one to rank 0; the rest are null.
  std::vector<std::unique_ptr<Connection>> controls;
  std::vector<int> present;  // ascending; without this one where it is a newcomer
};

class WatchedSession final : public Session {
 public:
  WatchedSession(SessionOptions options, Secret secret, Gathering gathering);
  ~WatchedSession() override;

  const Membership& membership() const override { return membership_; }
  const SessionOptions& options() const override { return options_; }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override;
  Status health() const override { return health_.status(); }
  void abort(const Error& error) override;
  void set_phase(std::uint64_t step, const char* phase) override { peers_.set_phase(step, phase); }
  std::string last_seen(int rank) const override { return peers_.last_seen(rank); }
  double patience() const override;
  Result<std::vector<Epoch>> regroup(const Deadline& deadline) override;
  void renew() override {
    if (options_.is_elastic && !health_.failed()) requests_.renew();
  }
  void leave() override;

  // The rest of an elastic session's start: a control connection to every rank. Once.
  Status connect_all(const Deadline& deadline);

 private:
  // The watcher thread's.
  void watch();
  void take_requests();
  void receive_from(int rank);
  void handle(int rank, const Message& message);
  void lose(int rank, const std::string& how);
  void consider(AbortMessage report, bool seen_directly);
  void settle(const AbortMessage& verdict);
  void admit(Acceptor::PendingConnection pending);
  void beat();
  void finish();
  void watch_members();
  void apply(const Roster::Actions& actions);
  void install(const Epoch& epoch);
  Status receive_newcomer(int rank, const Message& message);

  Status judge(const Claim& peer) const;
  double patience_with(int rank) const;
  std::set<int> list_controls() const;

  // Any thread's.
  Status judge_peer(const Claim& peer) const;
  bool has_checksums(const Member& peer) const;
  Error final_failure() const;
  bool is_in_vain(int peer) const;
  std::optional<Error> find_left() const;
  Result<std::unique_ptr<Connection>> connect_to(int peer, std::uint32_t purpose, const Deadline& deadline);
  // Of a newcomer.
  Status enter(const Deadline& deadline);
  Status introduce_to(int peer, const Member& member, const Deadline& deadline);

  const SessionOptions options_;
  const Secret secret_;
  Membership membership_;  // only regroup() changes it: addresses of newcomers
  bool is_newcomer_;       // and has not entered
  const double beat_seconds_;

  PeerStatus peers_;
  SessionHealth health_;
  std::atomic<std::uint64_t> epoch_;  // of connections, as the last regroup() said
  Arrivals arrivals_;

  // Touched by the watcher only.
  std::vector<std::unique_ptr<Connection>> controls_;
  Acceptor acceptor_;
  Suspicion suspicion_;
  std::optional<ElasticMembers> members_;  // of an elastic session
  LingeringConnections askers_;            // that are being told who is there
  double next_beat_ = 0;
  bool announced_leave_ = false;

  WaitSet waits_;
  SessionRequests requests_;
  std::thread watcher_;
};

}  // namespace motley::net
