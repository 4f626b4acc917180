#include "motley/net/peer_status.h"

#include <algorithm>
#include <string_view>

namespace motley::net {
namespace {

constexpr double kGraceSeconds = 0.2;        // rank 0 waits for a better explanation
constexpr double kOthersGraceSeconds = 0.8;  // the others wait for rank 0's verdict

constexpr std::string_view kRecording = "recording";

// Whether a rank in this phase waits for nobody.
bool is_busy(std::string_view phase) {
  return phase == "forward" || phase == "backward" || phase == "optimizer" || phase == kRecording;
}

// Follows from something else that went wrong, or may: to be held back for a moment.
bool may_be_consequence(const AbortMessage& report) {
  return report.error.rank != report.reporter || report.error.code == ErrorCode::kPeerLost ||
         report.error.code == ErrorCode::kTimeout;
}

}  // namespace

PeerStatus::PeerStatus(int rank, int size) : rank_(rank), peers_(static_cast<std::size_t>(size)) {
  for (Peer& peer : peers_) peer.at = peer.heard = peer.moved = monotonic_seconds();
}

void PeerStatus::set_phase(std::uint64_t step, const char* phase) {
  const double now = monotonic_seconds();
  if (const std::uint64_t before = step_.exchange(step, std::memory_order_relaxed); before != step) {
    const double began = began_.exchange(now, std::memory_order_relaxed);
    if (before + 1 == step && before > 0) step_seconds_.store(now - began, std::memory_order_relaxed);
  }
  phase_.store(phase, std::memory_order_relaxed);
  moved_.store(now, std::memory_order_relaxed);
}

double PeerStatus::stuck_seconds(int rank) const {
  if (is_busy(phase_.load(std::memory_order_relaxed))) return 0;
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  if (!is_busy(peer.phase)) return 0;
  return monotonic_seconds() - std::max(peer.moved, moved_.load(std::memory_order_relaxed));
}

bool PeerStatus::is_recording(int rank) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(rank)].phase == kRecording;
}

std::string PeerStatus::last_seen(int rank) const {
  if (rank == rank_) return fmt::format("step {}, {}, now", step_.load(), phase_.load());
  if (rank < 0 || rank >= static_cast<int>(peers_.size())) return "never";
  const std::lock_guard lock(mutex_);
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  return fmt::format("step {}, {}, {:.1f} s ago", peer.step, peer.state == RankState::kLeft ? "left" : peer.phase,
                     monotonic_seconds() - peer.at);
}

void PeerStatus::receive_from(int rank, std::span<const Heartbeat> heartbeats) {
  const std::lock_guard lock(mutex_);
  for (const Heartbeat& heartbeat : heartbeats) {
    // Rank 0 tells of all ranks, the others of themselves.
    if (heartbeat.rank >= static_cast<int>(peers_.size()) || heartbeat.rank == rank_ ||
        (rank != 0 && heartbeat.rank != rank)) {
      continue;
    }
    Peer& peer = peers_[static_cast<std::size_t>(heartbeat.rank)];
    const double at = monotonic_seconds() - heartbeat.age;
    if (heartbeat.state == RankState::kLeft) peer.state = RankState::kLeft;
    if (at < peer.at) continue;  // rank 0 may not hear what this rank does
    if (peer.step != heartbeat.step || peer.phase != heartbeat.phase) peer.moved = monotonic_seconds();
    peer.step = heartbeat.step;
    peer.phase = heartbeat.phase;
    peer.at = at;
  }
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

std::optional<AbortMessage> Suspicion::consider(AbortMessage report, bool seen_directly, double now) {
  if (!waits_ || !may_be_consequence(report)) return in_own_words(std::move(report));
  if (!report_) {
    settle_at_ = now + (rank_ == 0 ? kGraceSeconds : kOthersGraceSeconds);
  } else if (!seen_directly || seen_directly_) {
    return {};
  }
  report_ = std::move(report);
  seen_directly_ = seen_directly;
  return {};
}

std::optional<AbortMessage> Suspicion::find_verdict(double now) const {
  if (!report_ || now < settle_at_) return {};
  return in_own_words(*report_);
}

AbortMessage Suspicion::in_own_words(AbortMessage report) const {
  if (report.error.rank == report.reporter) {
    report.error.message = fmt::format("rank {} failed: {}", report.reporter, report.error.message);
  } else if (report.reporter != rank_) {
    report.error.message = fmt::format("{} (seen by rank {})", report.error.message, report.reporter);
  }
  return report;
}

}  // namespace motley::net
