#include "motley/net/peer_status.h"

#include "motley/base/clock.h"

namespace motley::net {

PeerStatus::PeerStatus(int rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size)) {
  for (Peer& peer : peers_) peer.at = monotonic_seconds();
}

void PeerStatus::set_phase(std::uint64_t step, const char* phase) {
  step_.store(step, std::memory_order_relaxed);
  phase_.store(phase, std::memory_order_relaxed);
}

std::string PeerStatus::last_seen(int rank) const {
  if (rank == rank_) return fmt::format("step {}, {}, now", step_.load(), phase_.load());
  if (rank < 0 || rank >= static_cast<int>(peers_.size())) return "never";
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return fmt::format("step {}, {}, {:.1f} s ago", peer.step, peer.state == RankState::kLeft ? "left" : peer.phase,
                     monotonic_seconds() - peer.at);
}

bool PeerStatus::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].state == RankState::kLeft;
}

double PeerStatus::silent_seconds(int rank) const {
  const std::lock_guard lock(mutex_);
  return monotonic_seconds() - peers_[static_cast<std::size_t>(rank)].at;
}

void PeerStatus::receive_from(int rank) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(rank)].at = monotonic_seconds();
}

void PeerStatus::receive_from(int rank, std::span<const Heartbeat> heartbeats) {
  const std::lock_guard lock(mutex_);
  for (const Heartbeat& heartbeat : heartbeats) {
    // Rank 0 tells of all ranks, the others of themselves.
    if (heartbeat.rank < static_cast<int>(peers_.size()) && heartbeat.rank != rank_ &&
        (rank == 0 || heartbeat.rank == rank)) {
      peers_[static_cast<std::size_t>(heartbeat.rank)] = {heartbeat.state, heartbeat.step, heartbeat.phase,
                                                          monotonic_seconds() - heartbeat.age};
    }
  }
}

void PeerStatus::receive_leave(int rank) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(rank)].state = RankState::kLeft;
}

std::vector<Heartbeat> PeerStatus::list_heartbeats() const {
  std::vector<Heartbeat> heartbeats{{rank_, RankState::kPresent, step_.load(), 0, phase_.load()}};
  const std::lock_guard lock(mutex_);
  for (int rank = 1; rank_ == 0 && rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    heartbeats.push_back({rank, peer.state, peer.step, monotonic_seconds() - peer.at, peer.phase});
  }
  return heartbeats;
}

}  // namespace motley::net
