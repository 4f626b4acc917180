// One channel of the ring: a pair of connections, to the right and from the left neighbour, and the passes of buckets
// that flow through them. A state machine without waits or threads: advance() does what can be done now.
//
// The ring's schedule. A pass is cut into chunks of `size` segments, one for each rank. Within a chunk, step t of
// 0 .. 2 size - 3: a rank sends segment (rank - t) to the right and receives segment (rank - t - 1) from the left. In
// the first size - 1 steps what is received is added to the rank's own values (reduce-scatter); the last of these
// completes segment rank + 1, which is scaled; in the other steps finished segments are received (all-gather).
//
// Chunks follow each other: at time m, chunk c does step t if m = c + times_apart * t. So between receiving a segment
// and sending it on, a rank sends segments of other chunks, which gives the others time, and yet what is in use stays
// in the cache. All ranks go through (time, step) in the same order, so that frames need no matching but are checked by
// their tags.
//
// Sums stand in place of the rank's own values: the all-gather overwrites them later. A finished segment cannot arrive
// before this rank's part of it has left (it is contained in it), and received values occupy a slot only until they are
// added, which waits for nothing; so receiving never depends on sending, and the ring cannot lock up.
//
// A rank's weight goes in a small frame of its own ahead of the first chunk's segment, and is passed on in the same
// way; after size - 1 steps everybody knows all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "motley/collective/gradient_reducer.h"
#include "motley/kernels/convert.h"
#include "motley/net/connection.h"

namespace motley::collective {

// What is to be reduced: a part of one bucket.
struct RingPass {
  std::uint64_t tag = 0;        // of the bucket's start; its low 16 bits are free for the channel's use
  std::byte* values = nullptr;  // this rank's, and in their place the mean of all
  std::size_t elements = 0;
  std::size_t segment_elements = 0;
  std::size_t times_apart = 1;  // more gives neighbours more time and takes more of the cache
  double weight = 0;
  double* total_weight = nullptr;  // where the sum of all ranks' weights goes at the end
};

class RingChannel {
 public:
  // With two ranks `right` and `left` are the same connection. They must outlive the channel.
  RingChannel(int rank, int size, DataType type, WireType wire, std::size_t largest_segment_elements,
              net::Connection& right, net::Connection& left)
      : rank_(static_cast<std::size_t>(rank)),
        size_(static_cast<std::size_t>(size)),
        type_(type),
        narrow_(wire == WireType::kBfloat16),
        slot_bytes_(largest_segment_elements * byte_size(type)),
        right_(right),
        left_(left),
        receive_slots_(slot_bytes_ * kReceivesPosted),
        send_slots_(narrow_ ? slot_bytes_ * kSendsPosted : 0),
        widened_(narrow_ ? largest_segment_elements : 0) {}

  // Queues a pass; passes end in the order of their start. Returns its number, counted from 1.
  std::uint64_t start(const RingPass& what) {
    Pass& pass = passes_.emplace_back();
    pass.what = what;
    const std::size_t chunk_elements = what.segment_elements * size_;
    pass.chunks = std::max<std::size_t>(1, (what.elements + chunk_elements - 1) / chunk_elements);
    pass.weights.resize(size_);
    pass.weights[rank_] = what.weight;
    pass.steps_received.resize(pass.chunks);
    pass.sends_left = pass.receives_to_post = pass.receives_left = pass.chunks * steps();
    return ++started_;
  }

  // Moves at most a few segments. True if anything moved, so that it should be called again.
  Result<bool> advance() {
    if (passes_.empty()) return false;
    bool moved = post_receives();
    moved = post_sends() || moved;
    MOTLEY_ASSIGN(const bool right_moved, right_.progress());
    moved = right_moved || moved;
    if (&left_ != &right_) {
      MOTLEY_ASSIGN(const bool left_moved, left_.progress());
      moved = left_moved || moved;
    }
    while (expected_.size() > left_.pending_receives()) {
      take(expected_.front());
      expected_.pop_front();
      moved = true;
    }
    while (!passes_.empty()) {
      const Pass& pass = passes_.front();
      if (pass.receives_left > 0 || pass.sends_left > 0 || sent_ - right_.pending_sends() < pass.last_send) break;
      *pass.what.total_weight = weighted_mean(pass.weights).total_weight;
      passes_.pop_front();
      ++finished_;
      moved = true;
    }
    return moved;
  }

  std::uint64_t finished() const { return finished_; }  // number of passes that have ended
  bool idle() const { return passes_.empty(); }

  // The neighbour that holds this channel up: the left one if its values are missing, else the right one.
  int waits_for() const {
    const bool sends_blocked = !passes_.empty() && passes_.front().receives_left == 0;
    return static_cast<int>(sends_blocked ? (rank_ + 1) % size_ : rank_before(1));
  }

 private:
  static constexpr std::uint16_t kSegmentFrame = 0x100;
  static constexpr std::uint16_t kWeightFrame = 0x101;
  static constexpr std::size_t kReceivesPosted = 2;  // segments; so that the next one can land while one is added
  static constexpr std::size_t kSendsPosted = 4;     // frames

  // A place in a pass's order of segments.
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

    std::size_t chunk_at(const Place& place) const { return place.time - what.times_apart * place.step; }
  };
  struct Expected {
    Pass* pass;
    std::size_t chunk;
    std::size_t step;
    bool is_weight;
    std::byte* landing;
  };
  struct Segment {
    std::byte* values;
    std::size_t elements;
  };

  std::size_t steps() const { return 2 * (size_ - 1); }
  bool scatters(std::size_t step) const { return step + 1 < size_; }  // else it gathers
  std::size_t rank_before(std::size_t steps) const { return (rank_ + 2 * size_ - steps) % size_; }
  std::size_t wire_bytes(std::size_t elements) const { return elements * (narrow_ ? 2 : byte_size(type_)); }
  std::uint64_t tag(const Pass& pass, std::size_t chunk, std::size_t step) const {
    return pass.what.tag | ((chunk * steps() + step) & 0xffff);
  }

  // The later steps of a time come first: others wait for them.
  void move_on(const Pass& pass, Place& place) const {
    do {
      if (place.step > 0) {
        --place.step;
      } else {
        ++place.time;
        place.step = std::min(steps() - 1, place.time / pass.what.times_apart);
      }
    } while (pass.chunk_at(place) >= pass.chunks);
  }

  Segment segment(const Pass& pass, std::size_t chunk, std::size_t slice) const {
    const std::size_t chunk_elements = pass.what.segment_elements * size_;
    const std::size_t chunk_begin = chunk * chunk_elements;
    // The last chunk is shorter: its segments are too, in whole cache lines.
    const std::size_t lines = size_ * (64 / byte_size(type_));
    const std::size_t length = std::min(chunk_elements, pass.what.elements - chunk_begin);
    const std::size_t share = (length + lines - 1) / lines * (lines / size_);
    const std::size_t begin = std::min(length, slice * share);
    const std::size_t end = std::min(length, begin + share);
    const std::size_t offset = (chunk_begin + begin) * byte_size(type_);
    return {pass.what.values + offset, end - begin};
  }

  bool post_receives() {
    bool posted = false;
    for (Pass& pass : passes_) {
      while (pass.receives_to_post > 0) {
        // A segment and perhaps its weight are posted together.
        std::size_t segments = 0;
        for (const Expected& expected : expected_) segments += !expected.is_weight;
        if (segments >= kReceivesPosted) return posted;
        const std::size_t chunk = pass.chunk_at(pass.receive);
        const std::size_t step = pass.receive.step;
        if (chunk == 0 && scatters(step)) {
          double& weight = pass.weights[rank_before(step + 1)];
          left_.post_receive(kWeightFrame, tag(pass, chunk, step), std::as_writable_bytes(std::span(&weight, 1)));
          expected_.push_back({&pass, chunk, step, true, nullptr});
        }
        const Segment own = segment(pass, chunk, rank_before(step + 1));
        std::byte* landing = own.values;
        if (scatters(step) || narrow_) {
          landing = receive_slots_.data() + next_receive_slot_ * slot_bytes_;
          next_receive_slot_ = (next_receive_slot_ + 1) % kReceivesPosted;
        }
        left_.post_receive(kSegmentFrame, tag(pass, chunk, step), {landing, wire_bytes(own.elements)});
        expected_.push_back({&pass, chunk, step, false, landing});
        if (--pass.receives_to_post > 0) move_on(pass, pass.receive);
        posted = true;
      }
    }
    return posted;
  }

  bool post_sends() {
    bool posted = false;
    for (Pass& pass : passes_) {
      while (pass.sends_left > 0) {
        const std::size_t chunk = pass.chunk_at(pass.send);
        const std::size_t step = pass.send.step;
        if (pass.steps_received[chunk] < step || right_.pending_sends() >= kSendsPosted) return posted;
        if (chunk == 0 && scatters(step)) {
          const double& weight = pass.weights[rank_before(step)];
          right_.post_send(kWeightFrame, tag(pass, chunk, step), std::as_bytes(std::span(&weight, 1)));
          ++sent_;
        }
        const Segment own = segment(pass, chunk, rank_before(step));
        const std::byte* payload = own.values;
        if (narrow_) {
          std::byte* const slot = send_slots_.data() + next_send_slot_ * slot_bytes_;
          next_send_slot_ = (next_send_slot_ + 1) % kSendsPosted;
          kernels::round_to_bfloat16({reinterpret_cast<const float*>(payload), own.elements},
                                     reinterpret_cast<std::uint16_t*>(slot));
          payload = slot;
        }
        right_.post_send(kSegmentFrame, tag(pass, chunk, step), {payload, wire_bytes(own.elements)});
        pass.last_send = ++sent_;
        if (--pass.sends_left > 0) move_on(pass, pass.send);
        posted = true;
      }
    }
    return posted;
  }

  void take(const Expected& expected) {
    if (expected.is_weight) return;  // it has landed where it belongs
    Pass& pass = *expected.pass;
    const Segment own = segment(pass, expected.chunk, rank_before(expected.step + 1));
    const std::byte* received = expected.landing;
    if (narrow_) {
      kernels::widen_bfloat16({reinterpret_cast<const std::uint16_t*>(received), own.elements}, widened_.data());
      received = reinterpret_cast<const std::byte*>(widened_.data());
    }
    if (scatters(expected.step)) {
      add_up(pass, expected.step, own, received);
    } else if (narrow_) {
      std::copy_n(received, own.elements * sizeof(float), own.values);
    }
    ++pass.steps_received[expected.chunk];
    --pass.receives_left;
  }

  // result = received + weight * own gradient, where `received` is the left neighbour's plain values in step 0 and a
  // weighted sum after that. Ranks of weight 0 do not enter at all: their values may be anything.
  void add_up(Pass& pass, std::size_t step, const Segment& own, const std::byte* received) {
    std::vector<const std::byte*> inputs;
    std::vector<double> coefficients;
    double scale = 1;
    const bool completes = !scatters(step + 1);
    if (size_ == 2) {
      const Mean mean = weighted_mean(pass.weights);
      for (int rank : mean.ranks) inputs.push_back(std::cmp_equal(rank, rank_) ? own.values : received);
      coefficients = mean.coefficients;
      scale = mean.scale;
    } else {
      bool anything = false;
      for (std::size_t back = 1; back <= step + 1; ++back) anything = anything || pass.weights[rank_before(back)] != 0;
      if (anything) {
        inputs.push_back(received);
        coefficients.push_back(step == 0 ? pass.weights[rank_before(1)] : 1);
      }
      if (pass.what.weight != 0) {
        inputs.push_back(own.values);
        coefficients.push_back(pass.what.weight);
      }
      if (completes) {
        const double total = weighted_mean(pass.weights).total_weight;
        scale = total == 0 ? 0 : 1 / total;
      }
    }
    std::byte* const output[] = {own.values};
    sum_as(type_, inputs, coefficients, scale, output, 0, own.elements);
    if (narrow_ && completes) {
      // All ranks get the result as it goes over the wire, this one too.
      auto* values = reinterpret_cast<float*>(own.values);
      auto* halves = reinterpret_cast<std::uint16_t*>(widened_.data());
      kernels::round_to_bfloat16({values, own.elements}, halves);
      kernels::widen_bfloat16({halves, own.elements}, values);
    }
  }

  const std::size_t rank_;
  const std::size_t size_;
  const DataType type_;
  const bool narrow_;  // bfloat16 on the wire
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
  std::vector<std::byte> send_slots_;  // these of narrow values only
  std::size_t next_send_slot_ = 0;
  std::vector<float> widened_;
};

}  // namespace motley::collective
