// Which bucket goes over which lanes in which pieces.
#include "motley/collective/tcp_ring_exchange.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "motley/base/os/file.h"
#include "motley/collective/purposes.h"
#include "motley/collective/waiting.h"

namespace motley::collective {
namespace {

// Over loopback the processor is the limit, and what is in use must stay in the cache; over a link the neighbours need
// time to catch up with each other.
constexpr std::size_t kTimesApartOverLoopback = 1;
constexpr std::size_t kTimesApart = 3;
// All to all needs a connection per pair and (N - 1) times a bucket's bytes per rank.
constexpr int kMostDirectRanks = 8;
constexpr std::size_t kMostDirectBytesOfTwo = 256 << 10;  // both methods move the same bytes then
constexpr std::size_t kMostDirectBytes = 64 << 10;
constexpr std::size_t kSmallestSegment = 16 << 10;
constexpr std::size_t kLargestSegment = 256 << 10;
constexpr std::size_t kSmallestSplit = 1 << 20;  // smaller buckets go over one lane

constexpr std::uint16_t kLayoutFrame = 0x103;

// The system lets megabytes pile up in a loopback socket, more than the caches hold. A smaller buffer saves a quarter
// of the time that copying takes.
void limit_send_buffer(const net::Connection& connection) {
  const int bytes = 512 << 10;
  ::setsockopt(connection.descriptor(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

}  // namespace

TcpRingExchange::TcpRingExchange(net::Session& session, const ExchangeOptions& options)
    : session_(session), options_(options), rank_(session.membership().rank), size_(session.membership().size()) {}

Status TcpRingExchange::prepare(const Layout& layout, const Deadline& deadline) {
  MOTLEY_INVARIANT(values_.data() == nullptr, "prepare was called twice");
  if (options_.wire == WireType::kBfloat16 && layout.type != DataType::kFloat32) {
    return fail(ErrorCode::kInvalidInput, "bfloat16 on the wire is for gradients in float32; these are in float64");
  }
  if (options_.wire == WireType::kFloat16) {
    return fail(ErrorCode::kInvalidInput,
                "float16 on the wire is for a parameter server: the ring's partial sums may exceed its range; float32 "
                "and bfloat16 are accepted");
  }
  layout_ = layout;
  const std::size_t line = 64 / bytes_of(layout.type);
  std::size_t bytes = 0;
  std::size_t largest_segment = line;
  for (std::size_t elements : layout.bucket_elements) {
    Bucket bucket;
    bucket.elements = elements;
    bucket.offset = bytes;
    const std::size_t size = elements * bytes_of(layout.type);
    bucket.direct = size <= (size_ == 2 ? kMostDirectBytesOfTwo : kMostDirectBytes) && size_ <= kMostDirectRanks;
    // Some chunks of N segments, so that they can follow each other through the ring.
    const std::size_t wanted = options_.segment_bytes > 0 ? options_.segment_bytes
                                                          : std::clamp(size / static_cast<std::size_t>(4 * size_),
                                                                       kSmallestSegment, kLargestSegment);
    bucket.segment_elements = std::max(line, wanted / 64 * line);
    largest_segment = std::max(largest_segment, bucket.segment_elements);
    buckets_.push_back(bucket);
    bytes += (size + 63) / 64 * 64;
  }
  MOTLEY_ASSIGN(values_, Pages::allocate(bytes, "gradients"));
  std::memset(values_.data(), 0, values_.size());

  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  const auto& members = session_.membership().members;
  const auto here = std::ranges::count(members, members[rank_].host_id, &net::Member::host_id);
  over_loopback_ = std::ranges::all_of(members, [](const net::Member& member) {
    return member.address.starts_with("127.") || member.address == "::1" || member.address == "localhost";
  });
  MOTLEY_TRY(connect(layout, largest_segment, deadline));
  return driver_.begin(CPU_COUNT(&cores) >= here, options_.background_progress);
}

// Every rank goes through its pairs in the same order of all pairs, so that no two ranks wait for each other's later
// ones.
Status TcpRingExchange::connect(const Layout& layout, std::size_t largest_segment_elements, const Deadline& deadline) {
  const int lane_count = std::max(1, options_.tcp_lanes);
  const int right = (rank_ + 1) % size_;
  const int left = (rank_ + size_ - 1) % size_;
  std::vector<net::Connection*> to_right(static_cast<std::size_t>(lane_count));
  std::vector<net::Connection*> from_left(static_cast<std::size_t>(lane_count));
  std::vector<std::unique_ptr<net::Connection>> all(static_cast<std::size_t>(size_));
  for (int low = 0; low < size_; ++low) {
    for (int high = low + 1; high < size_; ++high) {
      if (rank_ != low && rank_ != high) continue;
      const int peer = rank_ == low ? high : low;
      for (int lane = 0; lane < lane_count && (peer == right || peer == left); ++lane) {
        MOTLEY_ASSIGN(auto connection,
                      session_.connect(peer, kRingPurpose + static_cast<std::uint32_t>(lane), deadline));
        if (over_loopback_) limit_send_buffer(*connection);
        if (peer == right) to_right[lane] = connection.get();
        if (peer == left) from_left[lane] = connection.get();
        neighbours_.push_back(std::move(connection));
      }
      if (size_ <= kMostDirectRanks) {
        MOTLEY_ASSIGN(all[peer], session_.connect(peer, kDirectPurpose, deadline));
      }
    }
  }

  const std::vector<std::uint64_t> own = {
      static_cast<std::uint64_t>(layout.type), static_cast<std::uint64_t>(options_.wire), layout.bucket_elements.size(),
      crc32c(std::as_bytes(std::span(layout.bucket_elements))), buckets_.empty() ? 0 : buckets_[0].segment_elements};
  MOTLEY_TRY(to_right[0]->send(kLayoutFrame, 0, std::as_bytes(std::span(own)), deadline, "the layout of the buckets"));
  MOTLEY_ASSIGN(const auto theirs, from_left[0]->receive(deadline, "the layout of its buckets"));
  if (!std::ranges::equal(theirs.payload, std::as_bytes(std::span(own)))) {
    return fail(Error{
        ErrorCode::kInvalidInput,
        fmt::format("rank {} prepared other buckets, or another type or segment size, than this rank", left), left});
  }

  for (int lane = 0; lane < lane_count; ++lane) {
    lanes_.push_back(std::make_unique<RingLane>(rank_, size_, layout.type, options_.wire, largest_segment_elements,
                                                *to_right[lane], *from_left[lane]));
  }
  direct_ = std::make_unique<DirectLane>(rank_, layout.type, options_.wire, std::move(all));
  return {};
}

std::span<std::byte> TcpRingExchange::buffer(int bucket) {
  return {values_.data() + buckets_[bucket].offset, buckets_[bucket].elements * bytes_of(layout_.type)};
}

Status TcpRingExchange::start(std::uint64_t step, int index, double weight) {
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
    bucket.direct_number = direct_->start(tag, buffer(index), weight, &bucket.total_weight);
  } else {
    const std::size_t bytes = bytes_of(layout_.type);
    const std::size_t line = 64 / bytes;
    const std::size_t parts = bucket.elements * bytes >= kSmallestSplit ? lanes_.size() : 1;
    const std::size_t share = (bucket.elements + parts * line - 1) / (parts * line) * line;
    bucket.pass_numbers.assign(lanes_.size(), 0);
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t lane = (part + static_cast<std::size_t>(index)) % lanes_.size();
      const std::size_t begin = std::min(bucket.elements, part * share);
      bucket.pass_numbers[lane] =
          lanes_[lane]->start({.tag = tag,
                               .values = values_.data() + bucket.offset + begin * bytes,
                               .elements = std::min(share, bucket.elements - begin),
                               .segment_elements = bucket.segment_elements,
                               .times_apart = over_loopback_ ? kTimesApartOverLoopback : kTimesApart,
                               .weight = weight,
                               .total_weight = &bucket.total_weight});
    }
  }
  driver_.started(bucket.patience);
  return {};
}

Result<bool> TcpRingExchange::advance() {
  bool moved = false;
  MOTLEY_ASSIGN(moved, direct_->advance());
  for (const auto& lane : lanes_) {
    MOTLEY_ASSIGN(const bool lane_moved, lane->advance());
    moved = moved || lane_moved;
  }
  return moved;
}

bool TcpRingExchange::done(const Bucket& bucket) const {
  if (bucket.direct) return direct_->finished() >= bucket.direct_number;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->finished() < bucket.pass_numbers[lane]) return false;
  }
  return true;
}

bool TcpRingExchange::idle() const {
  return direct_->idle() && std::ranges::all_of(lanes_, [](const auto& lane) { return lane->idle(); });
}

std::vector<int> TcpRingExchange::waits_for(const Bucket& bucket) const {
  if (bucket.direct) return direct_->waits_for();
  std::vector<int> ranks;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane]->finished() >= bucket.pass_numbers[lane]) continue;
    const int rank = lanes_[lane]->waits_for();
    if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
  }
  return ranks;
}

void TcpRingExchange::list_descriptors(std::vector<pollfd>& descriptors) const {
  const auto add = [&](const net::Connection& connection, bool reads, bool writes) {
    const int events = (reads ? POLLIN : 0) | (writes ? POLLOUT : 0);
    if (events != 0) descriptors.push_back({connection.descriptor(), static_cast<short>(events), 0});
  };
  direct_->visit_connections(add);
  for (const auto& lane : lanes_) lane->visit_connections(add);
}

Result<Outcome> TcpRingExchange::wait(int index, const Deadline& deadline) {
  MOTLEY_INVARIANT(index >= 0 && index < static_cast<int>(buckets_.size()), "there is no bucket {}", index);
  Bucket& bucket = buckets_[index];
  MOTLEY_INVARIANT(bucket.under_way, "bucket {} was waited for before it was started", index);
  auto lock = driver_.lock();
  MOTLEY_TRY(driver_.wait(lock, bucket.patience, deadline,
                          {.done = [&] { return done(bucket); },
                           .ranks = [&] { return waits_for(bucket); },
                           .operation = [&] { return fmt::format("step {}, bucket {}", bucket.step, index); }}));
  bucket.under_way = false;
  Outcome outcome;
  outcome.version = bucket.step;
  outcome.total_weight = bucket.total_weight;
  return outcome;
}

std::uint64_t TcpRingExchange::bytes_sent() const {
  std::uint64_t bytes = direct_ ? direct_->bytes_sent() : 0;
  for (const auto& neighbour : neighbours_) bytes += neighbour->bytes_sent();
  return bytes;
}

void TcpRingExchange::abort(const Error& error) {
  {
    const auto lock = driver_.lock();
    driver_.break_with(error);
  }
  session_.abort(error);
}

}  // namespace motley::collective
