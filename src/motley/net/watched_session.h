// A session that has been joined, with the thread that watches over it.
//
// The watcher thread alone touches the control connections and the data listener. Other threads leave requests under
// the mutex and wake it; what it learns it leaves there for them. A failure, once settled, never changes, so that
// health() needs one atomic read.
//
// Which failure is told, when several are seen at once? A rank's own word about what went wrong with it settles the
// matter at once. Anything else (a closed connection, silence, a report about another rank) may be a consequence of
// what is still on its way, and becomes the verdict only after a short grace. Rank 0 decides for all; the others wait a
// little longer than it does, so that all ranks name the same cause.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/net/acceptor.h"
#include "motley/net/messages.h"
#include "motley/net/rendezvous.h"

namespace motley::net {

class WatchedSession final : public Session {
 public:
  WatchedSession(SessionOptions options, Secret secret, Gathering gathering);
  ~WatchedSession() override;

  const Membership& membership() const override { return membership_; }
  const SessionOptions& options() const override { return options_; }
  Result<std::unique_ptr<Connection>> connect(int peer, std::uint32_t purpose, const Deadline& deadline) override;
  Status health() const override;
  void abort(const Error& error) override;
  void set_phase(std::uint64_t step, const char* phase) override;
  std::string last_heard(int rank) const override;
  void leave() override;

 private:
  struct Heard {
    RankState state = RankState::kPresent;
    std::uint64_t step = 0;
    std::string phase;
    double at = 0;  // monotonic seconds
  };
  struct Suspicion {
    AbortMessage report;
    bool seen_directly = false;  // the control connection told us, not another rank
    double settle_at = 0;
  };

  // The watcher thread's.
  void watch();
  void wait_for_events();
  void take_requests();
  void hear(int rank);
  void handle(int rank, const Message& message);
  void lose(int rank, const std::string& how);
  void consider(AbortMessage report, bool seen_directly);
  void settle(const AbortMessage& report, const std::string& message);
  std::string words(const AbortMessage& report) const;
  void admit(Acceptor::Guest guest);
  void beat();
  void finish();
  Pulse own_pulse() const;

  Status judge(const Claim& peer) const;
  Claim own_claim(std::uint32_t purpose) const;
  bool checksums_with(int peer) const;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  void wake() const;

  const SessionOptions options_;
  const Secret secret_;
  const Membership membership_;
  const int rank_;
  const double beat_seconds_;

  std::atomic<std::uint64_t> step_{0};
  std::atomic<const char*> phase_{"start"};
  std::atomic<bool> failed_{false};
  Error failure_;  // written once, before failed_ is set

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AbortMessage> reports_;  // of this rank, for the watcher
  bool leaving_ = false;
  bool stopping_ = false;
  bool idle_ = true;    // nothing waits to be sent
  bool alone_ = false;  // no control connection is left
  std::vector<Heard> heard_;
  std::map<std::pair<int, std::uint32_t>, std::unique_ptr<TcpConnection>> arrivals_;

  // Touched by the watcher only.
  std::vector<std::unique_ptr<TcpConnection>> controls_;
  Acceptor acceptor_;
  std::optional<Suspicion> suspicion_;
  double next_beat_ = 0;
  bool said_goodbye_ = false;

  Descriptor wake_;
  std::thread watcher_;
};

}  // namespace motley::net
