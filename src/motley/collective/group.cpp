// The two groups: over memory that all ranks of one host map, and over TCP, a star around rank 0 for values too small
// to be worth more.
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <thread>

#include "motley/base/guard.h"
#include "motley/base/os/file.h"
#include "motley/base/os/shared_counter.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/collective/waiting.h"
#include "motley/net/connection.h"
#include "motley/net/region.h"

namespace motley::collective {
namespace {

constexpr int kCounters = 8;
constexpr double kGroupSeconds = 60;  // for making a group: the ranks have just met

// Visits values in parts of at most so many; once where there are none. visit(part, where it begins)
template <class T, class Visit>
Status each_part(std::span<T> values, std::size_t most, const Visit& visit) {
  std::size_t begin = 0;
  do {
    const auto part = values.subspan(begin, std::min(most, values.size() - begin));
    MOTLEY_TRY(visit(part, begin));
    begin += part.size();
  } while (begin < values.size());
  return {};
}

// Of connections over which rank 0 says where a group's memory is; see StageChannels for more.
constexpr std::uint32_t kMemoryPurpose = 0x1007;
constexpr std::uint16_t kMemoryIsAt = 0x120;

// Each operation is one barrier with data, or one for each 128 KiB. Each rank has two chunks of memory, used in turn:
// before operation k it writes its values into chunk k mod 2, counts itself in, and waits until all have counted; then
// everybody reads what it needs. A chunk is written again for operation k + 2 only, and by then its owner has seen all
// ranks arrive at k + 1, which they do after they have read for k. So one counter is all the synchronisation there is.
class SharedGroup final : public Group {
 public:
  // Rank 0 makes the memory and tells the others where it is.
  static Result<std::unique_ptr<Group>> create(net::Session& session, const std::string& name,
                                               const Deadline& deadline) {
    const net::Membership& membership = session.membership();
    const std::size_t bytes = sizeof(Control) + membership.members.size() * (sizeof(Slot) + 2 * kChunkBytes);
    const std::string what = fmt::format("where the memory of the {} is", name);
    net::RegionAddress address;
    const auto payload = std::as_writable_bytes(std::span(&address, 1));
    const std::uint32_t tag = crc32c(name);
    std::unique_ptr<net::Region> region;
    if (membership.rank == 0) {
      MOTLEY_ASSIGN(region, net::Region::create(bytes));
      address = region->address();
      for (int rank = 1; rank < membership.size(); ++rank) {
        MOTLEY_ASSIGN(const auto peer, session.connect(rank, kMemoryPurpose, deadline));
        MOTLEY_TRY(peer->send(kMemoryIsAt, tag, payload, deadline, what));
      }
    } else {
      MOTLEY_ASSIGN(const auto peer, session.connect(0, kMemoryPurpose, deadline));
      MOTLEY_ASSIGN(const net::Message message, next_message(session, *peer, 0, what, deadline));
      if (message.header.type != kMemoryIsAt || message.header.tag != tag || message.payload.size() != sizeof address) {
        return fail(Error{ErrorCode::kInvalidInput, fmt::format("rank 0 makes another group than the {}", name), 0});
      }
      std::ranges::copy(message.payload, payload.begin());
      MOTLEY_ASSIGN(region, map_of_peer(session, address, bytes));
    }
    std::unique_ptr<SharedGroup> group(new SharedGroup(session, std::move(region)));
    sched_getaffinity(0, sizeof(cpu_set_t), &group->slot(membership.rank).cores);
    MOTLEY_TRY(group->barrier(deadline));
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < membership.size(); ++rank) CPU_OR(&cores, &cores, &group->slot(rank).cores);
    group->may_spin_ = CPU_COUNT(&cores) >= membership.size();
    MOTLEY_TRY(group->barrier(deadline));
    return group;
  }

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override {
    std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
    MOTLEY_TRY(each_part(values, kChunkBytes / sizeof(double), [&](auto part, std::size_t begin) -> Status {
      MOTLEY_TRY(synchronise(Operation::kAllGather, std::as_bytes(part), values.size_bytes(), deadline));
      for (int rank = 0; rank < size_ && !part.empty(); ++rank) {
        std::memcpy(all.data() + rank * values.size() + begin, chunk(rank), part.size_bytes());
      }
      return {};
    }));
    return all;
  }

  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override {
    MOTLEY_ASSIGN(const auto all, all_gather(values, deadline));
    for (std::size_t e = 0; e < values.size(); ++e) {
      values[e] = all[e];
      for (std::size_t at = e + values.size(); at < all.size(); at += values.size()) values[e] += all[at];
    }
    return {};
  }

  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override {
    return each_part(bytes, kChunkBytes, [&](std::span<std::byte> part, std::size_t) -> Status {
      const auto mine = rank_ == root ? std::span<const std::byte>(part) : std::span<const std::byte>{};
      MOTLEY_TRY(synchronise(Operation::kBroadcast, mine, bytes.size(), deadline));
      if (rank_ != root && !part.empty()) std::memcpy(part.data(), chunk(root), part.size());
      return {};
    });
  }

  Status barrier(const Deadline& deadline) override { return synchronise(Operation::kBarrier, {}, 0, deadline); }

  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline&) override {
    MOTLEY_INVARIANT(counter >= 0 && counter < kCounters, "there is no shared counter {}", counter);
    return region_->at<Control>(0)->counters[counter].value.fetch_add(amount);
  }

  bool may_spin() const override { return may_spin_; }

 private:
  static constexpr std::size_t kChunkBytes = 128 << 10;
  enum class Operation : std::uint32_t { kAllGather = 1, kBroadcast, kBarrier };
  static constexpr const char* kOperationNames[] = {"", "all_gather", "broadcast", "barrier"};

  // What a rank says about its latest operation, twice for the same reason as its chunks.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> sequence;  // of the operation that this rank has arrived at, for messages
    struct {
      Operation operation;
      std::uint64_t total;  // bytes of the whole operation
    } announced[2];
    cpu_set_t cores;  // that this rank may run on
  };
  struct Control {
    SharedCounter arrived;
    struct alignas(64) {
      std::atomic<std::int64_t> value;
    } counters[kCounters];
  };

  SharedGroup(net::Session& session, std::unique_ptr<net::Region> region)
      : session_(session),
        region_(std::move(region)),
        rank_(session.membership().rank),
        size_(session.membership().size()) {}

  Slot& slot(int rank) const { return region_->at<Slot>(sizeof(Control))[rank]; }

  std::byte* chunk(int rank) const {
    const std::uint64_t turn = MOTLEY_KEEPS("group-two-chunks") ? sequence_ % 2 : 0;
    return region_->data() + sizeof(Control) + size_ * sizeof(Slot) + (2 * rank + turn) * kChunkBytes;
  }

  Status synchronise(Operation operation, std::span<const std::byte> mine, std::size_t total,
                     const Deadline& deadline) {
    if (!failed_) return failed_;
    ++sequence_;
    Slot& own = slot(rank_);
    own.announced[sequence_ % 2] = {operation, total};
    if (!mine.empty()) std::memcpy(chunk(rank_), mine.data(), mine.size());
    own.sequence.store(sequence_, std::memory_order_release);
    auto& arrived = region_->at<Control>(0)->arrived;
    const auto target = static_cast<std::uint32_t>(sequence_ * static_cast<std::uint64_t>(size_));
    if (MOTLEY_KEEPS("group-arrival")) arrived.add(target);
    const auto name = [&] {
      return fmt::format("{}, operation {} of the group", kOperationNames[static_cast<int>(operation)], sequence_);
    };
    failed_ = wait_until_reached(arrived, target, may_spin_, [&] {
      return check_wait(session_, deadline, name(), [&] {
        std::vector<int> missing;
        for (int rank = 0; rank < size_; ++rank) {
          if (slot(rank).sequence.load(std::memory_order_acquire) < sequence_) missing.push_back(rank);
        }
        return missing;
      });
    });
    for (int rank = 0; rank < size_ && failed_; ++rank) {
      const auto& announced = slot(rank).announced[sequence_ % 2];
      if (announced.operation != operation || announced.total != total) {
        failed_ = fail(Error{ErrorCode::kInvalidInput,
                             fmt::format("{} with {} bytes: rank {} came with {} and {} bytes", name(), total, rank,
                                         kOperationNames[static_cast<int>(announced.operation)], announced.total),
                             rank});
      }
    }
    return failed_;
  }

  net::Session& session_;
  const std::unique_ptr<net::Region> region_;
  const int rank_;
  const int size_;
  bool may_spin_ = false;
  std::uint64_t sequence_ = 0;
  Status failed_;
};

constexpr std::uint32_t kGroupPurpose = 0x1000;  // of connections: see StageChannels for more
constexpr std::uint32_t kCounterPurpose = 0x1001;
constexpr std::size_t kPartBytes = 512 << 10;  // of one frame; transport takes up to 1 MiB
constexpr double kServeSeconds = 5;            // for a counter's request to arrive whole, and its answer to leave

// Rank 0 collects and hands out; a thread of it serves the shared counters.
class TcpGroup final : public Group {
 public:
  static Result<std::unique_ptr<Group>> create(net::Session& session, const Deadline& deadline) {
    std::unique_ptr<TcpGroup> group(new TcpGroup(session));
    const int rank = session.membership().rank;
    const int size = session.membership().size();
    group->peers_.resize(static_cast<std::size_t>(size));
    group->counters_.resize(static_cast<std::size_t>(size));
    for (int peer = rank == 0 ? 1 : 0; peer < (rank == 0 ? size : 1); ++peer) {
      MOTLEY_ASSIGN(group->peers_[peer], session.connect(peer, kGroupPurpose, deadline));
      MOTLEY_ASSIGN(group->counters_[peer], session.connect(peer, kCounterPurpose, deadline));
    }
    if (rank == 0) group->server_ = std::thread([raw = group.get()] { raw->serve(); });
    return group;
  }

  ~TcpGroup() override {
    stop_ = true;
    if (server_.joinable()) server_.join();
  }

  Result<std::vector<double>> all_gather(std::span<const double> values, const Deadline& deadline) override {
    const std::size_t size = peers_.size();
    const std::size_t most = std::max<std::size_t>(1, kPartBytes / sizeof(double) / size);
    std::vector<double> all(values.size() * size);
    MOTLEY_TRY(each_part(values, most, [&](std::span<const double> part, std::size_t begin) -> Status {
      std::vector<double> parts(part.size() * size);
      MOTLEY_TRY(gather(Operation::kAllGather, part, parts, deadline));
      for (std::size_t rank = 0; rank < size; ++rank) {
        std::copy_n(parts.data() + rank * part.size(), part.size(), all.data() + rank * values.size() + begin);
      }
      return {};
    }));
    return all;
  }

  Status all_reduce_sum(std::span<double> values, const Deadline& deadline) override {
    if (values.empty()) return {};
    return each_part(values, kPartBytes / sizeof(double),
                     [&](std::span<double> part, std::size_t) { return reduce_part(part, deadline); });
  }

  Status broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) override {
    return each_part(bytes, kPartBytes,
                     [&](std::span<std::byte> part, std::size_t) { return broadcast_part(part, root, deadline); });
  }

  Status barrier(const Deadline& deadline) override { return gather(Operation::kBarrier, {}, {}, deadline); }

  Result<std::int64_t> fetch_add(int counter, std::int64_t amount, const Deadline& deadline) override {
    MOTLEY_INVARIANT(counter >= 0 && counter < kCounters, "there is no shared counter {}", counter);
    if (session_.membership().rank == 0) return values_[counter].fetch_add(amount);
    const Request request{counter, amount};
    const std::string what = fmt::format("fetch_add on counter {}, request {}", counter, ++requests_);
    MOTLEY_TRY(counters_[0]->send(static_cast<std::uint16_t>(Operation::kFetchAdd), requests_,
                                  std::as_bytes(std::span(&request, 1)), deadline, what));
    MOTLEY_ASSIGN(const net::Message message, next_message(session_, *counters_[0], 0, what, deadline));
    std::int64_t value = 0;
    if (message.payload.size() != sizeof(value)) {
      return fail(
          Error{ErrorCode::kCorrupt, fmt::format("{}: the answer has {} bytes", what, message.payload.size()), 0});
    }
    std::memcpy(&value, message.payload.data(), sizeof(value));
    return value;
  }

 private:
  enum class Operation : std::uint16_t { kAllGather = 0x110, kBroadcast, kBarrier, kFetchAdd, kReduce = 0x115 };
  struct Request {
    std::int64_t counter;
    std::int64_t amount;
  };

  explicit TcpGroup(net::Session& session) : session_(session) {}

  std::string name(Operation operation) const {
    const char* const names[] = {"all_gather", "broadcast", "barrier", "fetch_add", "", "all_reduce"};
    const char* const word = names[static_cast<int>(operation) - static_cast<int>(Operation::kAllGather)];
    return fmt::format("{}, operation {} of the group", word, sequence_);
  }

  Status send(int peer, Operation operation, std::span<const std::byte> bytes, const Deadline& deadline) {
    const std::string what = name(operation);
    const Status sent = peers_[peer]->send(static_cast<std::uint16_t>(operation), sequence_, bytes, deadline, what,
                                           [this] { return !session_.health(); });
    return sent ? sent : fail(find_cause(session_, sent.error()).within(what));
  }

  Status receive(int peer, Operation operation, std::span<std::byte> into, const Deadline& deadline) {
    const std::string what = name(operation);
    MOTLEY_ASSIGN(const net::Message message, next_message(session_, *peers_[peer], peer, what, deadline));
    const net::Message::Header& header = message.header;
    if (header.type != static_cast<std::uint16_t>(operation) || header.tag != sequence_ ||
        message.payload.size() != into.size()) {
      return fail(Error{ErrorCode::kInvalidInput,
                        fmt::format("{} with {} bytes: rank {} came with operation type {}, number {} and {} bytes",
                                    what, into.size(), peer, header.type, header.tag, message.payload.size()),
                        peer});
    }
    std::ranges::copy(message.payload, into.begin());
    return {};
  }

  // Everybody's values go to rank 0, where collect(peer) receives them one after the other, and rank 0's result to all.
  template <class Collect>
  Status meet(Operation operation, std::span<const std::byte> own, std::span<std::byte> result,
              const Deadline& deadline, const Collect& collect) {
    ++sequence_;
    if (session_.membership().rank != 0) {
      MOTLEY_TRY(send(0, operation, own, deadline));
      return receive(0, operation, result, deadline);
    }
    const int size = static_cast<int>(peers_.size());
    for (int peer = 1; peer < size; ++peer) MOTLEY_TRY(collect(peer));
    for (int peer = 1; peer < size; ++peer) MOTLEY_TRY(send(peer, operation, result, deadline));
    return {};
  }

  Status gather(Operation operation, std::span<const double> values, std::span<double> all, const Deadline& deadline) {
    std::ranges::copy(values, all.begin());
    return meet(operation, std::as_bytes(values), std::as_writable_bytes(all), deadline, [&](int peer) {
      const auto place = all.subspan(peer * values.size(), values.size());
      return receive(peer, operation, std::as_writable_bytes(place), deadline);
    });
  }

  // Rank 0 adds, in the order of the ranks, so that the sum is bitwise the same from run to run.
  Status reduce_part(std::span<double> values, const Deadline& deadline) {
    std::vector<double> theirs(values.size());
    const auto bytes = std::as_writable_bytes(values);
    return meet(Operation::kReduce, bytes, bytes, deadline, [&](int peer) -> Status {
      MOTLEY_TRY(receive(peer, Operation::kReduce, std::as_writable_bytes(std::span(theirs)), deadline));
      std::ranges::transform(values, theirs, values.begin(), std::plus<>());
      return {};
    });
  }

  Status broadcast_part(std::span<std::byte> bytes, int root, const Deadline& deadline) {
    ++sequence_;
    const int rank = session_.membership().rank;
    if (rank == root && root != 0) return send(0, Operation::kBroadcast, bytes, deadline);
    if (rank != root) MOTLEY_TRY(receive(rank == 0 ? root : 0, Operation::kBroadcast, bytes, deadline));
    for (int peer = 1; rank == 0 && peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer != root) MOTLEY_TRY(send(peer, Operation::kBroadcast, bytes, deadline));
    }
    return {};
  }

  // Answers requests until the group ends. A peer that leaves, or says something that is no request, is served no more;
  // it notices by its closed connection.
  void serve() {
    while (!stop_) {
      std::vector<pollfd> descriptors;
      bool has_input = false;
      for (const auto& peer : counters_) {
        descriptors.push_back({peer ? peer->descriptor() : -1, POLLIN, 0});
        has_input = has_input || (peer && peer->has_input());
      }
      ::poll(descriptors.data(), descriptors.size(), has_input ? 0 : static_cast<int>(kHealthSeconds * 1000));
      for (std::size_t rank = 0; rank < descriptors.size(); ++rank) {
        const auto& peer = counters_[rank];
        if (descriptors[rank].revents == 0 && !(peer && peer->has_input())) continue;
        const auto message = counters_[rank]->receive(Deadline::after(kServeSeconds), "a request");
        Request request{-1, 0};
        if (message && message->payload.size() == sizeof(request)) {
          std::memcpy(&request, message->payload.data(), sizeof(request));
        }
        bool served = request.counter >= 0 && request.counter < kCounters;
        if (served) {
          const std::int64_t value = values_[request.counter].fetch_add(request.amount);
          served = counters_[rank]
                       ->send(message->header.type, message->header.tag, std::as_bytes(std::span(&value, 1)),
                              Deadline::after(kServeSeconds), "an answer")
                       .has_value();
        }
        if (!served) counters_[rank].reset();
      }
    }
  }

  net::Session& session_;
  std::vector<std::unique_ptr<net::Connection>> peers_;     // by rank; rank 0 has all, the others rank 0's only
  std::vector<std::unique_ptr<net::Connection>> counters_;  // the same, for the shared counters
  std::uint64_t sequence_ = 0;
  std::uint64_t requests_ = 0;
  std::array<std::atomic<std::int64_t>, kCounters> values_{};  // rank 0's
  std::atomic<bool> stop_ = false;
  std::thread server_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_shared_group(net::Session& session, const std::string& name,
                                                 const Deadline& deadline) {
  return SharedGroup::create(session, name, deadline);
}

Result<std::vector<net::RegionAddress>> all_addresses(Group& group, const net::Region& own, const Deadline& deadline) {
  const auto values = std::bit_cast<std::array<double, 2>>(own.address());
  MOTLEY_ASSIGN(const auto all, group.all_gather(values, deadline));
  std::vector<net::RegionAddress> addresses(all.size() / values.size());
  std::ranges::copy(std::as_bytes(std::span(all)), std::as_writable_bytes(std::span(addresses)).begin());
  return addresses;
}

Result<std::unique_ptr<Group>> make_group(net::Session& session) {
  const Deadline deadline = Deadline::after(kGroupSeconds);
  return session.membership().on_one_host() ? SharedGroup::create(session, "group", deadline)
                                            : TcpGroup::create(session, deadline);
}

}  // namespace motley::collective
