// What each rank was last doing, as heartbeats tell: this rank's own step and phase, and what it knows of the others.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "motley/net/messages.h"

namespace motley::net {

// All calls may come from any thread.
class PeerStatus {
 public:
  PeerStatus(int rank, int size);

  void set_phase(std::uint64_t step, const char* phase);  // own; the text must outlive this
  std::string last_seen(int rank) const;                  // "step 12, backward, 3.2 s ago"
  bool has_left(int rank) const;
  double silent_seconds(int rank) const;

  // Something came from a rank.
  void receive_from(int rank);
  void receive_from(int rank, std::span<const Heartbeat> heartbeats);
  void receive_leave(int rank);
  // What this rank says: of itself, and rank 0 of all.
  std::vector<Heartbeat> list_heartbeats() const;

 private:
  struct Peer {
    RankState state = RankState::kPresent;
    std::uint64_t step = 0;
    std::string phase = "start";
    double at = 0;  // monotonic seconds
  };

  const int rank_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<const char*> phase_{"start"};
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
};

}  // namespace motley::net
