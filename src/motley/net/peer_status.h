// What this rank knows of the others: what each was last doing, as heartbeats tell, and which failure is told when
// several are seen at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/net/messages.h"

namespace motley::net {

// This rank's own step and phase, and those of the others. All calls may come from any thread.
class PeerStatus {
 public:
  PeerStatus(int rank, int size);

  // Own; the text must outlive this.
  void set_phase(std::uint64_t step, const char* phase);
  std::string last_seen(int rank) const;  // "step 12, backward, 3.2 s ago"
  bool has_left(int rank) const {
    const std::lock_guard lock(mutex_);
    return peers_[static_cast<std::size_t>(rank)].state == RankState::kLeft;
  }
  // How long a rank has now computed, or recorded a step, without any progress while this one waited; 0: one of them
  // does not.
  double stuck_seconds(int rank) const;
  // A step, as far as this one has heard.
  bool is_recording(int rank) const;
  double step_seconds() const { return step_seconds_.load(std::memory_order_relaxed); }  // of this rank's last step
  // Since it last was heard, here or by rank 0.
  double silent_seconds(int rank) const {
    const std::lock_guard lock(mutex_);
    return monotonic_seconds() - peers_[static_cast<std::size_t>(rank)].at;
  }
  // Since something last came from the rank itself.
  double unheard_seconds(int rank) const {
    const std::lock_guard lock(mutex_);
    return monotonic_seconds() - peers_[static_cast<std::size_t>(rank)].heard;
  }

  // Something came from a rank.
  void receive_from(int rank) {
    const std::lock_guard lock(mutex_);
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    peer.at = peer.heard = monotonic_seconds();
  }
  void receive_from(int rank, std::span<const Heartbeat> heartbeats);
  void receive_leave(int rank) {
    const std::lock_guard lock(mutex_);
    peers_[static_cast<std::size_t>(rank)].state = RankState::kLeft;
  }
  // For so long this rank looked at nobody, as it was stopped, perhaps with all of its machine: that is nobody's
  // silence.
  void forgive(double seconds) {
    const std::lock_guard lock(mutex_);
    const double now = monotonic_seconds();
    for (Peer& peer : peers_) {
      for (double* time : {&peer.at, &peer.heard, &peer.moved}) *time = std::min(now, *time + seconds);
    }
  }
  // Another process has the rank now.
  void reset(int rank) {
    const std::lock_guard lock(mutex_);
    const double now = monotonic_seconds();
    peers_[static_cast<std::size_t>(rank)] = Peer{.at = now, .heard = now, .moved = now};
  }
  // What this rank says: of itself, and rank 0 of all.
  std::vector<Heartbeat> list_heartbeats() const;

 private:
  struct Peer {
    RankState state = RankState::kPresent;
    std::uint64_t step = 0;
    std::string phase = "start";
    double at = 0;     // of what is known of it, by itself or rank 0: monotonic seconds
    double heard = 0;  // when something last came from itself
    double moved = 0;  // when step or phase changed
  };

  const int rank_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<const char*> phase_{"start"};
  std::atomic<double> moved_{monotonic_seconds()};  // when phase_ changed
  std::atomic<double> began_{0}, step_seconds_{0};  // of the step
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
};

// What a rank suspects until it is settled. A rank's own word about what went wrong with it settles the matter at once.
// Anything else (a closed connection, silence, a report about another rank) may be a consequence of what is still on
// its way, and becomes the verdict only after a short grace. Rank 0 decides for all; the others wait a little longer
// than it does, so that all ranks name the same cause. Verdicts are in its own words.
class Suspicion {
 public:
  // Without `waits` nothing is held back.
  explicit Suspicion(int rank, bool waits = true) : rank_(rank), waits_(waits) {}

  // The verdict, where the report settles the matter; else it is held back, or dropped for what is suspected already.
  // `seen_directly`: a control connection told us, not another rank. `now`: monotonic seconds.
  std::optional<AbortMessage> consider(AbortMessage report, bool seen_directly, double now);
  // The verdict, once nothing better has come by `now`.
  std::optional<AbortMessage> find_verdict(double now) const;
  double settle_at() const { return settle_at_; }  // infinite where nothing is suspected
  void clear() { *this = Suspicion(rank_, waits_); }

 private:
  AbortMessage in_own_words(AbortMessage report) const;

  int rank_;
  bool waits_;
  std::optional<AbortMessage> report_;
  bool seen_directly_ = false;
  double settle_at_ = std::numeric_limits<double>::infinity();
};

}  // namespace motley::net
