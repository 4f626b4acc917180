// A session that has been joined, with the thread that watches over it.
//
// The watcher thread alone touches the control connections and the data listener. Other threads leave requests under
// the mutex and wake it; what it learns it leaves there for them. A failure, once settled, never changes, so that
// health() needs one atomic read.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "motley/net/admission.h"
#include "motley/net/peer_status.h"
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
  Status health() const override { return failed() ? fail(failure_) : Status(); }
  void abort(const Error& error) override;
  void set_phase(std::uint64_t step, const char* phase) override { peers_.set_phase(step, phase); }
  std::string last_seen(int rank) const override { return peers_.last_seen(rank); }
  void leave() override;

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

  Status judge(const Claim& peer) const;
  bool checksums_with(int peer) const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  const SessionOptions options_;
  const Secret secret_;
  const Membership membership_;
  const int rank_;
  const double beat_seconds_;

  PeerStatus peers_;
  std::atomic<bool> failed_{false};
  Error failure_;  // written once, before failed_ is set

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AbortMessage> reports_;  // of this rank, for the watcher
  bool leaving_ = false;
  bool stopping_ = false;
  bool idle_ = true;    // nothing waits to be sent
  bool alone_ = false;  // no control connection is left
  std::map<std::pair<int, std::uint32_t>, std::unique_ptr<Connection>> arrivals_;

  // Touched by the watcher only.
  std::vector<std::unique_ptr<Connection>> controls_;
  Acceptor acceptor_;
  Suspicion suspicion_;
  double next_beat_ = 0;
  bool announced_leave_ = false;

  WaitSet waits_;
  std::thread watcher_;
};

}  // namespace motley::net
