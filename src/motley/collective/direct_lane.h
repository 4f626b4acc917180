// Small buckets over TCP: every rank sends all its values to every other one and all add up everything, in rank order.
// One message time instead of the ring's 2 (N - 1). Like RingLane, a state machine without waits or threads.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "motley/collective/exchange.h"
#include "motley/net/connection.h"

namespace motley::collective {

class DirectLane {
 public:
  // One connection per rank, the own one null.
  DirectLane(int rank, DataType type, WireType wire, std::vector<std::unique_ptr<net::Connection>> peers);

  // Queues a bucket; buckets end in the order of their start. Returns its number, counted from 1. The values are copied
  // out at once and written again when the bucket ends, with the sum of all weights.
  std::uint64_t start(std::uint64_t tag, std::span<std::byte> values, double weight, double* total_weight);
  Result<bool> advance();  // true if anything moved
  std::uint64_t finished() const { return finished_; }
  bool idle() const { return jobs_.empty(); }
  template <class Visit>
  void visit_connections(Visit visit) const {
    if (idle()) return;
    for (const auto& peer : peers_) {
      if (peer) visit(*peer, peer->pending_receives() > 0, peer->wants_to_write());
    }
  }
  std::vector<int> waits_for() const;
  std::uint64_t bytes_sent() const;

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  // A message: the weight in its first cache line, then the values as on the wire.
  using MessageBuffer = std::vector<Line>;
  struct Job {
    std::span<std::byte> values;
    double* total_weight;
    std::vector<MessageBuffer> messages;  // by rank, the own one included
    std::uint64_t number;
  };

  bool has_all(const Job& job) const;
  void add_up(const Job& job);

  const int rank_;
  const DataType type_;
  const WireType wire_;
  std::vector<std::unique_ptr<net::Connection>> peers_;
  std::deque<Job> jobs_;
  std::vector<std::vector<MessageBuffer>> spare_;  // of ended jobs, so that their memory is used again
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
};

}  // namespace motley::collective
