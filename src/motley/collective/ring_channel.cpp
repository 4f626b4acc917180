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
// Sums stand in the rank's own buffer, which the all-gather overwrites later. A finished segment cannot arrive before
// this rank's part of it has left (it is contained in it), and received values occupy a slot only until they are added,
// which waits for nothing; so receiving never depends on sending, and the ring cannot lock up.
//
// A rank's weight goes in a small frame of its own ahead of the first chunk's segment, and is passed on in the same
// way; after size - 1 steps everybody knows all of them.
#include "motley/collective/ring_channel.h"

#include <algorithm>

#include "motley/collective/mean.h"
#include "motley/kernels/convert.h"

namespace motley::collective {
namespace {

constexpr std::uint16_t kSegmentFrame = 0x100;
constexpr std::uint16_t kWeightFrame = 0x101;
constexpr std::size_t kReceivesPosted = 2;  // segments; so that the next one can land while one is added
constexpr std::size_t kSendsPosted = 4;     // frames

}  // namespace

RingChannel::RingChannel(int rank, int size, DataType type, WireType wire, std::size_t largest_segment_elements,
                         net::Connection& right, net::Connection& left)
    : rank_(rank),
      size_(size),
      type_(type),
      wire_(wire),
      slot_bytes_(largest_segment_elements * byte_size(type)),
      right_(right),
      left_(left),
      receive_slots_(slot_bytes_ * kReceivesPosted) {
  if (wire_ == WireType::kBfloat16) {
    send_slots_.resize(slot_bytes_ * kSendsPosted);
    widened_.resize(largest_segment_elements);
  }
}

std::uint64_t RingChannel::start(const RingPass& what) {
  Pass& pass = passes_.emplace_back();
  pass.what = what;
  const std::size_t chunk_elements = what.segment_elements * static_cast<std::size_t>(size_);
  pass.chunks = std::max<std::size_t>(1, (what.elements + chunk_elements - 1) / chunk_elements);
  pass.weights.resize(static_cast<std::size_t>(size_));
  pass.weights[rank_] = what.weight;
  pass.steps_received.resize(pass.chunks);
  pass.sends_left = pass.receives_to_post = pass.receives_left = pass.chunks * steps();
  return ++started_;
}

std::size_t RingChannel::chunk_at(const Pass& pass, const Place& place) {
  return place.time - pass.what.times_apart * place.step;
}

// The later steps of a time come first: others wait for them.
void RingChannel::move_on(const Pass& pass, Place& place) const {
  do {
    if (place.step > 0) {
      --place.step;
    } else {
      ++place.time;
      place.step = std::min(steps() - 1, place.time / pass.what.times_apart);
    }
  } while (chunk_at(pass, place) >= pass.chunks);
}

RingChannel::Segment RingChannel::segment(const Pass& pass, std::size_t chunk, int slice) const {
  const std::size_t chunk_elements = pass.what.segment_elements * static_cast<std::size_t>(size_);
  const std::size_t chunk_begin = chunk * chunk_elements;
  // The last chunk is shorter: its segments are too, in whole cache lines.
  const std::size_t line = 64 / byte_size(type_);
  const std::size_t length = std::min(chunk_elements, pass.what.elements - chunk_begin);
  const std::size_t share =
      (length + static_cast<std::size_t>(size_) * line - 1) / (static_cast<std::size_t>(size_) * line) * line;
  const std::size_t begin = std::min(length, static_cast<std::size_t>(slice) * share);
  const std::size_t end = std::min(length, begin + share);
  return {pass.what.values + (chunk_begin + begin) * byte_size(type_), end - begin};
}

int RingChannel::rank_before(std::size_t steps) const {
  return (rank_ + 2 * size_ - static_cast<int>(steps)) % size_;
}

std::size_t RingChannel::wire_bytes(std::size_t elements) const {
  return elements * (wire_ == WireType::kBfloat16 ? 2 : byte_size(type_));
}

Result<bool> RingChannel::advance() {
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

bool RingChannel::post_receives() {
  bool posted = false;
  for (Pass& pass : passes_) {
    while (pass.receives_to_post > 0) {
      // A segment and perhaps its weight are posted together.
      std::size_t segments = 0;
      for (const Expected& expected : expected_) segments += !expected.is_weight;
      if (segments >= kReceivesPosted) return posted;
      const std::size_t chunk = chunk_at(pass, pass.receive);
      const std::size_t step = pass.receive.step;
      const std::uint64_t tag = pass.what.tag | ((chunk * steps() + step) & 0xffff);
      if (chunk == 0 && step + 1 < static_cast<std::size_t>(size_)) {
        double& weight = pass.weights[rank_before(step + 1)];
        left_.post_receive(kWeightFrame, tag, std::as_writable_bytes(std::span(&weight, 1)));
        expected_.push_back({&pass, chunk, step, true, nullptr});
      }
      const Segment own = segment(pass, chunk, rank_before(step + 1));
      std::byte* landing = own.data;
      if (step + 1 < static_cast<std::size_t>(size_) || wire_ == WireType::kBfloat16) {
        landing = receive_slots_.data() + next_receive_slot_ * slot_bytes_;
        next_receive_slot_ = (next_receive_slot_ + 1) % kReceivesPosted;
      }
      left_.post_receive(kSegmentFrame, tag, {landing, wire_bytes(own.elements)});
      expected_.push_back({&pass, chunk, step, false, landing});
      if (--pass.receives_to_post > 0) move_on(pass, pass.receive);
      posted = true;
    }
  }
  return posted;
}

bool RingChannel::post_sends() {
  bool posted = false;
  for (Pass& pass : passes_) {
    while (pass.sends_left > 0) {
      const std::size_t chunk = chunk_at(pass, pass.send);
      const std::size_t step = pass.send.step;
      if (pass.steps_received[chunk] < step || right_.pending_sends() >= kSendsPosted) return posted;
      const std::uint64_t tag = pass.what.tag | ((chunk * steps() + step) & 0xffff);
      if (chunk == 0 && step + 1 < static_cast<std::size_t>(size_)) {
        right_.post_send(kWeightFrame, tag, std::as_bytes(std::span(&pass.weights[rank_before(step)], 1)));
        ++sent_;
      }
      const Segment own = segment(pass, chunk, rank_before(step));
      std::byte* payload = own.data;
      if (wire_ == WireType::kBfloat16) {
        payload = send_slots_.data() + next_send_slot_ * slot_bytes_;
        next_send_slot_ = (next_send_slot_ + 1) % kSendsPosted;
        kernels::round_to_bfloat16({reinterpret_cast<const float*>(own.data), own.elements},
                                   reinterpret_cast<std::uint16_t*>(payload));
      }
      right_.post_send(kSegmentFrame, tag, {payload, wire_bytes(own.elements)});
      pass.last_send = ++sent_;
      if (--pass.sends_left > 0) move_on(pass, pass.send);
      posted = true;
    }
  }
  return posted;
}

void RingChannel::take(const Expected& expected) {
  if (expected.is_weight) return;  // it has landed where it belongs
  Pass& pass = *expected.pass;
  const Segment own = segment(pass, expected.chunk, rank_before(expected.step + 1));
  const std::byte* received = expected.landing;
  if (wire_ == WireType::kBfloat16) {
    kernels::widen_bfloat16({reinterpret_cast<const std::uint16_t*>(received), own.elements}, widened_.data());
    received = reinterpret_cast<const std::byte*>(widened_.data());
  }
  if (expected.step + 1 < static_cast<std::size_t>(size_)) {
    add_up(pass, expected.step, own, received);
  } else if (wire_ == WireType::kBfloat16) {
    std::copy_n(received, own.elements * sizeof(float), own.data);
  }
  ++pass.steps_received[expected.chunk];
  --pass.receives_left;
}

// own = received + weight * own, where `received` is the left neighbour's plain values in step 0 and a weighted sum
// after that. Ranks of weight 0 do not enter at all: their values may be anything.
void RingChannel::add_up(Pass& pass, std::size_t step, const Segment& own, const std::byte* received) {
  std::vector<const std::byte*> inputs;
  std::vector<double> coefficients;
  double scale = 1;
  if (size_ == 2) {
    const Mean mean = weighted_mean(pass.weights);
    for (int rank : mean.ranks) inputs.push_back(rank == rank_ ? own.data : received);
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
      inputs.push_back(own.data);
      coefficients.push_back(pass.what.weight);
    }
    if (step + 2 == static_cast<std::size_t>(size_)) {
      const double total = weighted_mean(pass.weights).total_weight;
      scale = total == 0 ? 0 : 1 / total;
    }
  }
  std::byte* const output[] = {own.data};
  sum_as(type_, inputs, coefficients, scale, output, 0, own.elements);
  if (wire_ == WireType::kBfloat16 && step + 2 == static_cast<std::size_t>(size_)) {
    // All ranks get the result as it goes over the wire, this one too.
    auto* values = reinterpret_cast<float*>(own.data);
    auto* halves = reinterpret_cast<std::uint16_t*>(widened_.data());
    kernels::round_to_bfloat16({values, own.elements}, halves);
    kernels::widen_bfloat16({halves, own.elements}, values);
  }
}

int RingChannel::waits_for() const {
  const bool sends_blocked = !passes_.empty() && passes_.front().receives_left == 0;
  return sends_blocked ? (rank_ + 1) % size_ : rank_before(1);
}

}  // namespace motley::collective
