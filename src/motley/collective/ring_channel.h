// One channel of the ring: a pair of connections, to the right and from the left neighbour, and the passes of buckets
// that flow through them. A state machine without waits or threads: advance() does what can be done now.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/net/connection.h"

namespace motley::collective {

// What is to be reduced: a part of one bucket.
struct RingPass {
  std::uint64_t tag = 0;  // of the bucket's start; its low 16 bits are free for the channel's use
  std::byte* values = nullptr;
  std::size_t elements = 0;
  std::size_t segment_elements = 0;
  std::size_t times_apart = 1;  // see ring_channel.cpp; more gives neighbours more time and takes more of the cache
  double weight = 0;
  double* total_weight = nullptr;  // where the sum of all ranks' weights goes at the end
};

class RingChannel {
 public:
  // With two ranks `right` and `left` are the same connection. They must outlive the channel.
  RingChannel(int rank, int size, DataType type, WireType wire, std::size_t largest_segment_elements,
              net::Connection& right, net::Connection& left);

  // Queues a pass; passes end in the order of their start. Returns its number, counted from 1.
  std::uint64_t start(const RingPass& pass);
  // Moves at most a few segments. True if anything moved, so that it should be called again.
  Result<bool> advance();
  std::uint64_t finished() const { return finished_; }  // number of passes that have ended
  bool idle() const { return passes_.empty(); }
  // Calls visit(connection, wants to read, wants to write).
  template <class Visit>
  void visit_connections(Visit visit) const {
    if (idle()) return;
    if (&right_ == &left_) {
      visit(right_, right_.pending_receives() > 0, right_.wants_to_write());
    } else {
      visit(right_, false, right_.wants_to_write());
      visit(left_, left_.pending_receives() > 0, false);
    }
  }
  // The neighbour that holds this channel up: the left one if its values are missing, else the right one.
  int waits_for() const;

 private:
  // A place in a pass's order of segments (see ring_channel.cpp).
  struct Place {
    std::size_t time = 0;
    std::size_t step = 0;
  };
  struct Pass {
    RingPass what;
    std::size_t chunks = 0;
    std::vector<double> weights;                // by rank; known ones
    std::vector<std::uint32_t> steps_received;  // by chunk
    Place send;
    Place receive;
    std::size_t sends_left = 0;
    std::size_t receives_to_post = 0;
    std::size_t receives_left = 0;
    std::uint64_t last_send = 0;  // number of the last frame sent for it
  };
  struct Expected {
    Pass* pass;
    std::size_t chunk;
    std::size_t step;
    bool is_weight;
    std::byte* landing;
  };
  struct Segment {
    std::byte* data;
    std::size_t elements;
  };

  std::size_t steps() const { return 2 * (static_cast<std::size_t>(size_) - 1); }
  static std::size_t chunk_at(const Pass& pass, const Place& place);
  void move_on(const Pass& pass, Place& place) const;
  Segment segment(const Pass& pass, std::size_t chunk, int slice) const;
  int rank_before(std::size_t steps) const;
  std::size_t wire_bytes(std::size_t elements) const;
  bool post_receives();
  bool post_sends();
  void take(const Expected& expected);
  void add_up(Pass& pass, std::size_t step, const Segment& own, const std::byte* received);

  const int rank_;
  const int size_;
  const DataType type_;
  const WireType wire_;
  const std::size_t slot_bytes_;
  net::Connection& right_;
  net::Connection& left_;

  std::deque<Pass> passes_;
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
  std::deque<Expected> expected_;  // receives that are posted, in order
  std::uint64_t sent_ = 0;         // frames posted to the right
  std::vector<std::byte> receive_slots_;
  std::size_t next_receive_slot_ = 0;
  std::vector<std::byte> send_slots_;  // bfloat16 only
  std::size_t next_send_slot_ = 0;
  std::vector<float> widened_;  // bfloat16 only
};

}  // namespace motley::collective
