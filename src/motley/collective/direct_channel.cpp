// All to all with whole buckets.
#include "motley/collective/direct_channel.h"

#include <algorithm>
#include <cstring>

#include "motley/collective/mean.h"
#include "motley/kernels/convert.h"

namespace motley::collective {
namespace {

constexpr std::uint16_t kBucketFrame = 0x102;

}  // namespace

DirectChannel::DirectChannel(int rank, DataType type, WireType wire,
                             std::vector<std::unique_ptr<net::Connection>> peers)
    : rank_(rank), type_(type), wire_(wire), peers_(std::move(peers)) {}

std::uint64_t DirectChannel::start(std::uint64_t tag, std::span<std::byte> values, double weight,
                                   double* total_weight) {
  const std::size_t wire_bytes = wire_ == WireType::kBfloat16 ? values.size() / 2 : values.size();
  const std::size_t lines = 1 + (wire_bytes + sizeof(Line) - 1) / sizeof(Line);
  Job& job = jobs_.emplace_back();
  job.values = values;
  job.total_weight = total_weight;
  job.number = ++started_;
  if (!spare_.empty()) {
    job.messages = std::move(spare_.back());
    spare_.pop_back();
  }
  job.messages.resize(peers_.size());
  for (MessageBuffer& message : job.messages) message.resize(lines);

  MessageBuffer& own = job.messages[rank_];
  std::memcpy(own.data(), &weight, sizeof(weight));
  if (wire_ == WireType::kBfloat16) {
    kernels::round_to_bfloat16({reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float)},
                               reinterpret_cast<std::uint16_t*>(own.data() + 1));
  } else if (!values.empty()) {
    std::memcpy(own.data() + 1, values.data(), values.size());
  }
  const std::size_t bytes = sizeof(Line) + wire_bytes;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (!peers_[rank]) continue;
    peers_[rank]->post_send(kBucketFrame, tag, std::as_bytes(std::span(own)).first(bytes));
    peers_[rank]->post_receive(kBucketFrame, tag, std::as_writable_bytes(std::span(job.messages[rank])).first(bytes));
  }
  return job.number;
}

// Every job has one message from and one to every peer, in the order of the jobs.
bool DirectChannel::has_all(const Job& job) const {
  return std::ranges::all_of(peers_, [&](const auto& peer) {
    return !peer ||
           (started_ - peer->pending_receives() >= job.number && started_ - peer->pending_sends() >= job.number);
  });
}

Result<bool> DirectChannel::advance() {
  bool moved = false;
  if (jobs_.empty()) return moved;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    MOTLEY_ASSIGN(const bool peer_moved, peer->progress());
    moved = moved || peer_moved;
  }
  while (!jobs_.empty() && has_all(jobs_.front())) {
    add_up(jobs_.front());
    spare_.push_back(std::move(jobs_.front().messages));
    jobs_.pop_front();
    ++finished_;
    moved = true;
  }
  return moved;
}

void DirectChannel::add_up(const Job& job) {
  std::vector<double> weights(peers_.size());
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    std::memcpy(&weights[rank], job.messages[rank].data(), sizeof(double));
  }
  const Mean mean = weighted_mean(weights);
  *job.total_weight = mean.total_weight;
  const std::size_t count = job.values.size() / byte_size(type_);
  std::vector<std::vector<float>> widened;
  std::vector<const std::byte*> inputs;
  for (int rank : mean.ranks) {
    const Line* values = job.messages[rank].data() + 1;
    if (wire_ == WireType::kBfloat16) {
      widened.emplace_back(count);
      kernels::widen_bfloat16({reinterpret_cast<const std::uint16_t*>(values), count}, widened.back().data());
      inputs.push_back(reinterpret_cast<const std::byte*>(widened.back().data()));
    } else {
      inputs.push_back(values->bytes);
    }
  }
  std::byte* const output[] = {job.values.data()};
  sum_as(type_, inputs, mean.coefficients, mean.scale, output, 0, count);
}

std::vector<int> DirectChannel::waits_for() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < peers_.size() && !jobs_.empty(); ++rank) {
    if (peers_[rank] && started_ - peers_[rank]->pending_receives() < jobs_.front().number) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::uint64_t DirectChannel::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const auto& peer : peers_) bytes += peer ? peer->bytes_sent() : 0;
  return bytes;
}

}  // namespace motley::collective
