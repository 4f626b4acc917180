// All-reduce of gradients over TCP: a segmented ring for large buckets, all to all for small ones. See
// docs/explanation/gradient-synchronisation.md.
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "motley/base/guard.h"
#include "motley/base/os/file.h"
#include "motley/base/os/memory.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/collective/ring_channel.h"
#include "motley/collective/waiting.h"
#include "motley/kernels/convert.h"

namespace motley::collective {
namespace {

// Over loopback the processor is the limit, and what is in use must stay in the cache; over a link the neighbours need
// time to catch up with each other.
constexpr std::size_t kTimesApartOverLoopback = 1;
constexpr std::size_t kTimesApart = 3;
// All to all needs a connection per pair and (N - 1) times a bucket's bytes per rank.
constexpr int kMaxDirectRanks = 8;
constexpr std::size_t kMaxDirectBytesOfTwo = 256 << 10;  // both methods move the same bytes then
constexpr std::size_t kMaxDirectBytes = 64 << 10;
constexpr std::size_t kSmallestSegment = 16 << 10;
constexpr std::size_t kLargestSegment = 256 << 10;

constexpr std::uint32_t kDirectPurpose = 0x1002;  // of connections: see StageChannels for more
constexpr std::uint32_t kRingPurpose = 0x1100;
constexpr std::uint16_t kBucketFrame = 0x102;
constexpr std::uint16_t kLayoutFrame = 0x103;

// The system lets megabytes pile up in a loopback socket, more than the caches hold. A smaller buffer saves a quarter
// of the time that copying takes.
void limit_send_buffer(const net::Connection& connection) {
  const int bytes = 512 << 10;
  ::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

// Small buckets: every rank sends all its values to every other one and all add up everything, in rank order. One
// message time instead of the ring's 2 (N - 1). Like RingChannel, a state machine without waits or threads.
class DirectChannel {
 public:
  // One connection per rank, the own one null.
  DirectChannel(int rank, DataType type, WireType wire, std::vector<std::unique_ptr<net::Connection>> peers)
      : rank_(rank), type_(type), wire_(wire), peers_(std::move(peers)) {}

  // Queues a bucket; buckets end in the order of their start. Returns its number, counted from 1. The values are copied
  // out at once; when the bucket ends the mean is written in their place, and the sum of all weights.
  std::uint64_t start(std::uint64_t tag, std::span<std::byte> values, double weight, double* total_weight) {
    const std::size_t wire_bytes = wire_ == WireType::kBfloat16 ? values.size() / 2 : values.size();
    const std::size_t lines = 1 + (wire_bytes + sizeof(Line) - 1) / sizeof(Line);
    Job& job = jobs_.emplace_back(values, total_weight, ++started_);
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

  // True if anything moved.
  Result<bool> advance() {
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

  std::uint64_t finished() const { return finished_; }
  bool idle() const { return jobs_.empty(); }

  std::vector<int> waits_for() const {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < peers_.size() && !jobs_.empty(); ++rank) {
      if (peers_[rank] && (started_ - peers_[rank]->pending_receives() < jobs_.front().number ||
                           started_ - peers_[rank]->pending_sends() < jobs_.front().number)) {
        ranks.push_back(static_cast<int>(rank));
      }
    }
    return ranks;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  // A message: the weight in its first cache line, then the values as on the wire.
  using MessageBuffer = std::vector<Line>;
  struct Job {
    std::span<std::byte> values;
    double* total_weight;
    std::uint64_t number;
    std::vector<MessageBuffer> messages = {};  // by rank, the own one included
  };

  // Every job has one message from and one to every peer, in the order of the jobs.
  bool has_all(const Job& job) const {
    return std::ranges::all_of(peers_, [&](const auto& peer) {
      return !peer || (started_ - peer->pending_receives() >= job.number &&
                       MOTLEY_GUARD("planted-own-message-gone", started_ - peer->pending_sends() >= job.number));
    });
  }

  void add_up(const Job& job) {
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

  const int rank_;
  const DataType type_;
  const WireType wire_;
  const std::vector<std::unique_ptr<net::Connection>> peers_;
  std::deque<Job> jobs_;
  std::vector<std::vector<MessageBuffer>> spare_;  // of ended jobs, so that their memory is used again
  std::uint64_t started_ = 0;
  std::uint64_t finished_ = 0;
};

class TcpRingReducer final : public GradientReducer, private Channels {
 public:
  TcpRingReducer(net::Session& session, const ReducerOptions& options)
      : session_(session), options_(options), rank_(session.membership().rank), size_(session.membership().size()) {}

  Status prepare(const Layout& layout, const Deadline& deadline) override {
    MOTLEY_INVARIANT(values_.data() == nullptr, "prepare was called twice");
    if (options_.wire == WireType::kBfloat16 && layout.type != DataType::kFloat32) {
      return fail(ErrorCode::kInvalidInput, "bfloat16 on the wire is for gradients in float32; these are in float64");
    }
    if (options_.wire == WireType::kFloat16) {
      return fail(
          ErrorCode::kInvalidInput,
          "float16 on the wire is for a parameter server: the ring's partial sums may exceed its range; float32 "
          "and bfloat16 are accepted");
    }
    layout_ = layout;
    const std::size_t line = 64 / byte_size(layout.type);
    offsets_ = value_offsets(layout.bucket_elements, byte_size(layout.type));
    std::size_t largest_segment = line;
    for (std::size_t elements : layout.bucket_elements) {
      const std::size_t size = elements * byte_size(layout.type);
      // Some chunks of N segments, so that they can follow each other through the ring.
      const std::size_t wanted = options_.segment_bytes > 0 ? options_.segment_bytes
                                                            : std::clamp(size / static_cast<std::size_t>(4 * size_),
                                                                         kSmallestSegment, kLargestSegment);
      Bucket& bucket = buckets_.emplace_back();
      bucket.direct = size <= (size_ == 2 ? kMaxDirectBytesOfTwo : kMaxDirectBytes) && size_ <= kMaxDirectRanks;
      bucket.segment_elements = std::max(line, wanted / 64 * line);
      largest_segment = std::max(largest_segment, bucket.segment_elements);
    }
    MOTLEY_ASSIGN(values_, Pages::allocate(offsets_.back(), "gradients"));
    std::memset(values_.data(), 0, values_.size());

    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof(cores), &cores);
    const auto& members = session_.membership().members;
    const auto here = std::ranges::count(members, members[rank_].host_id, &net::Member::host_id);
    over_loopback_ = std::ranges::all_of(members, [](const net::Member& member) {
      return member.address.starts_with("127.") || member.address == "::1" || member.address == "localhost";
    });
    MOTLEY_TRY(connect(largest_segment, deadline));
    return driver_.begin(CPU_COUNT(&cores) >= here, options_.background_progress);
  }

  std::span<std::byte> buffer(int bucket) override {
    return {values_.data() + offsets_[bucket], layout_.bucket_elements[bucket] * byte_size(layout_.type)};
  }

  Status start(std::uint64_t step, int index, double weight) override {
    MOTLEY_INVARIANT(index >= 0 && index < static_cast<int>(buckets_.size()), "there is no bucket {}", index);
    MOTLEY_INVARIANT(weight >= 0, "the weight {} of bucket {} is negative or not a number", weight, index);
    Bucket& bucket = buckets_[index];
    MOTLEY_INVARIANT(!bucket.under_way, "bucket {} was started again before it was waited for", index);
    const auto lock = driver_.lock();
    MOTLEY_TRY(driver_.status());
    bucket.under_way = true;
    bucket.step = step;
    const std::uint64_t tag = step << 32 | static_cast<std::uint64_t>(index & 0xffff) << 16;
    if (bucket.direct) {
      bucket.number = direct_->start(tag, buffer(index), weight, &bucket.total_weight);
    } else {
      bucket.number = ring_->start({.tag = tag,
                                    .values = buffer(index).data(),
                                    .elements = layout_.bucket_elements[index],
                                    .segment_elements = bucket.segment_elements,
                                    .times_apart = over_loopback_ ? kTimesApartOverLoopback : kTimesApart,
                                    .weight = weight,
                                    .total_weight = &bucket.total_weight});
    }
    driver_.started(bucket.patience);
    return {};
  }

  Result<Outcome> wait(int index, const Deadline& deadline) override {
    MOTLEY_INVARIANT(index >= 0 && index < static_cast<int>(buckets_.size()), "there is no bucket {}", index);
    Bucket& bucket = buckets_[index];
    MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
    auto lock = driver_.lock();
    MOTLEY_TRY(driver_.wait(
        lock, bucket.patience, deadline,
        {.done = [&] { return (bucket.direct ? direct_->finished() : ring_->finished()) >= bucket.number; },
         .ranks = [&] { return bucket.direct ? direct_->waits_for() : std::vector{ring_->waits_for()}; },
         .operation = [&] { return fmt::format("step {}, bucket {}", bucket.step, index); }}));
    bucket.under_way = false;
    return Outcome{.total_weight = bucket.total_weight, .version = bucket.step};
  }

  void abort(const Error& error) override {
    {
      const auto lock = driver_.lock();
      driver_.break_with(error);
    }
    session_.abort(error);
  }

  std::string name() const override { return "tcp-ring"; }

  std::uint64_t bytes_sent() const override { return driver_.bytes_sent(); }

 private:
  struct Bucket {
    std::size_t segment_elements = 0;
    bool direct = false;
    bool under_way = false;
    std::uint64_t step = 0;
    double total_weight = 0;
    std::uint64_t number = 0;  // of its pass, or of its turn in the direct channel
    ChannelDriver::Patience patience;
  };

  // Every rank goes through its pairs in the same order of all pairs, so that no two ranks wait for each other's later
  // ones.
  Status connect(std::size_t largest_segment_elements, const Deadline& deadline) {
    const int right = (rank_ + 1) % size_;
    const int left = (rank_ + size_ - 1) % size_;
    net::Connection* to_right = nullptr;
    net::Connection* from_left = nullptr;
    std::vector<std::unique_ptr<net::Connection>> all(static_cast<std::size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {  // pairs in the order of the lower rank, then of the higher
      if (peer == rank_) continue;
      if (peer == right || peer == left) {
        MOTLEY_ASSIGN(auto connection, session_.connect(peer, kRingPurpose, deadline));
        if (over_loopback_) limit_send_buffer(*connection);
        if (peer == right) to_right = connection.get();
        if (peer == left) from_left = connection.get();
        driver_.add(*connection);
        neighbours_.push_back(std::move(connection));
      }
      if (size_ <= kMaxDirectRanks) {
        MOTLEY_ASSIGN(all[peer], session_.connect(peer, kDirectPurpose, deadline));
        driver_.add(*all[peer]);
      }
    }

    const std::vector<std::uint64_t> own = {static_cast<std::uint64_t>(layout_.type),
                                            static_cast<std::uint64_t>(options_.wire), layout_.bucket_elements.size(),
                                            crc32c(std::as_bytes(std::span(layout_.bucket_elements))),
                                            buckets_.empty() ? 0 : buckets_[0].segment_elements};
    MOTLEY_TRY(to_right->send(kLayoutFrame, 0, std::as_bytes(std::span(own)), deadline, "the layout of the buckets"));
    MOTLEY_ASSIGN(const auto theirs, next_message(session_, *from_left, left, "the layout of its buckets", deadline));
    if (!std::ranges::equal(theirs.payload, std::as_bytes(std::span(own)))) {
      return fail(Error{
          ErrorCode::kInvalidInput,
          fmt::format("rank {} prepared other buckets, or another type or segment size, than this rank", left), left});
    }

    ring_ = std::make_unique<RingChannel>(rank_, size_, layout_.type, options_.wire, largest_segment_elements,
                                          *to_right, *from_left);
    direct_ = std::make_unique<DirectChannel>(rank_, layout_.type, options_.wire, std::move(all));
    return {};
  }

  Result<bool> advance() override {
    MOTLEY_ASSIGN(const bool direct_moved, direct_->advance());
    MOTLEY_ASSIGN(const bool ring_moved, ring_->advance());
    return direct_moved || ring_moved;
  }

  bool idle() const override { return direct_->idle() && ring_->idle(); }

  net::Session& session_;
  const ReducerOptions options_;
  const int rank_;
  const int size_;
  bool over_loopback_ = false;
  Layout layout_;
  std::vector<std::size_t> offsets_;  // of buckets in the values
  Pages values_;
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<net::Connection>> neighbours_;

  // These belong to whoever holds the driver's lock.
  std::unique_ptr<RingChannel> ring_;
  std::unique_ptr<DirectChannel> direct_;
  ChannelDriver driver_{session_, *this};  // last: its helper ends first
};

}  // namespace

std::unique_ptr<GradientReducer> make_tcp_ring_reducer(net::Session& session, const ReducerOptions& options) {
  return std::make_unique<TcpRingReducer>(session, options);
}

}  // namespace motley::collective
