// A session that has been joined, with the thread that watches over it.
//
// The watcher thread alone touches the control connections and the data listener. Other threads leave requests under
// the mutex and wake it; what it learns it leaves there for them. A failure, once settled, never changes, so that
// health() needs one atomic read where all is well.
//
// In an elastic session every rank has a control connection to every other one, and the roster (roster.h) decides who
// is left. A failure is then settled only if it is a rank's own; the loss of ranks lasts until regroup(). Processes of
// this host that are lost are ended, so that nothing they do can matter any more.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "motley/net/admission.h"
#include "motley/net/peer_status.h"
#include "motley/net/roster.h"
#include "motley/net/session.h"

namespace motley::net {

inline constexpr std::uint32_t kControlPurpose = 0xffffffffU;

// What this rank says of itself: of a membership that is not known yet, session and epoch are zero.
Claim own_claim(const SessionOptions& options, const Membership& membership, std::uint32_t purpose);

struct Gathering {
  Membership membership;
  Descriptor data_listener;
  // By rank. Rank 0 has one to each other rank, the others have one to rank 0; the rest are null.
  std::vector<std::unique_ptr<Connection>> controls;
};

class WatchedSession final : public Session {
 public:
  WatchedSession(SessionOptions options, Secret secret, Gathering gathering);
  ~WatchedSession() override;

  const Membership& membership() const override { return membership_; }
  const SessionOptions& options() const override { return options_; }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override;
  Status health() const override { return failed() ? fail(failure()) : Status(); }
  void abort(const Error& error) override;
  void set_phase(std::uint64_t step, const char* phase) override { peers_.set_phase(step, phase); }
  std::string last_seen(int rank) const override { return peers_.last_seen(rank); }
  Result<std::vector<Epoch>> regroup(const Deadline& deadline) override;
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
  void watch_processes();
  void apply(const Roster::Actions& actions);
  void break_off(const Error& error, bool is_final);

  Status judge(const Claim& peer) const;
  Result<std::unique_ptr<Connection>> connect_to(int peer, std::uint32_t purpose, const Deadline& deadline);
  Error failure() const {
    const std::lock_guard lock(mutex_);
    return failure_.error;
  }
  bool checksums_with(int peer) const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  const SessionOptions options_;
  const Secret secret_;
  const Membership membership_;
  const int rank_;
  const double beat_seconds_;

  PeerStatus peers_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> epoch_;  // of connections, as the last regroup() said

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct {
    Error error;            // where failed_
    bool is_final = false;  // regroup() does not end it
  } failure_;
  struct {
    std::vector<Epoch> installed;  // and not yet returned by regroup()
    bool is_agreed = true;         // no rank is lost that is a member
  } epochs_;
  struct {
    int open = 0;
    std::vector<std::pair<int, std::unique_ptr<Connection>>> made;  // by connect_all(), for the watcher
  } control_connections_;
  struct {
    std::vector<AbortMessage> reports;  // of this rank, for the watcher
    bool leaving = false;
    bool stopping = false;
    bool are_sent = true;  // nothing waits to be sent
  } requests_;
  // By epoch, rank and purpose.
  std::map<std::tuple<std::uint64_t, int, std::uint32_t>, std::unique_ptr<Connection>> arrivals_;

  // Touched by the watcher only.
  std::vector<std::unique_ptr<Connection>> controls_;
  Acceptor acceptor_;
  Suspicion suspicion_;
  struct {
    std::optional<Roster> roster;
    std::vector<Descriptor> processes;  // by rank, of this host's (pidfd)
  } elastic_;
  double next_beat_ = 0;
  bool announced_leave_ = false;

  WaitSet waits_;
  std::thread watcher_;
};

}  // namespace motley::net
