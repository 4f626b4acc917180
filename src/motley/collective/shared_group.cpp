// One barrier with data. Each rank has two chunks of memory, used in turn: before operation k it writes its values into
// chunk k mod 2, counts itself in, and waits until all have counted; then everybody reads what it needs. A chunk is
// written again for operation k + 2 only, and by then its owner has seen all ranks arrive at k + 1, which they do after
// they have read for k. So one counter is all the synchronisation there is.
#include "motley/collective/shared_group.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "motley/collective/waiting.h"

namespace motley::collective {
namespace {

constexpr std::size_t kChunkBytes = 128 << 10;
constexpr int kCounters = 8;

const char* const kOperationNames[] = {"", "all_gather", "broadcast", "barrier"};

}  // namespace

// What a rank says about its latest operation, twice for the same reason as its chunks.
struct alignas(64) SharedGroup::Slot {
  std::atomic<std::uint64_t> sequence;  // of the operation that this rank has arrived at, for messages
  struct {
    Operation operation;
    std::uint64_t total;  // bytes of the whole operation
  } said[2];
  cpu_set_t cores;  // that this rank may run on
};

struct SharedGroup::Control {
  SharedCounter arrived;
  struct alignas(64) {
    std::atomic<std::int64_t> value;
  } counters[kCounters];
};

SharedGroup::SharedGroup(net::Session& session, std::unique_ptr<net::Region> region)
    : session_(session),
      region_(std::move(region)),
      rank_(session.membership().rank),
      size_(session.membership().size()) {}

SharedGroup::Slot& SharedGroup::slot(int rank) const {
  return region_->at<Slot>(sizeof(Control))[rank];
}

std::byte* SharedGroup::chunk(int rank) const {
  const std::size_t slots = sizeof(Control) + static_cast<std::size_t>(size_) * sizeof(Slot);
  return region_->data() + slots + (static_cast<std::size_t>(rank) * 2 + sequence_ % 2) * kChunkBytes;
}

// Rank 0 makes the memory; the others look for its name until it is there. When all have it the name goes away, and the
// second barrier ensures that it is gone before anybody may make the next group of that name.
Result<std::unique_ptr<SharedGroup>> SharedGroup::create(net::Session& session, const std::string& name,
                                                         const Deadline& deadline) {
  const net::Membership& membership = session.membership();
  const auto size = static_cast<std::size_t>(membership.size());
  const std::string full_name = fmt::format("{:x}-{}-{}", membership.session, membership.epoch, name);
  const std::size_t bytes = sizeof(Control) + size * (sizeof(Slot) + 2 * kChunkBytes);
  std::unique_ptr<net::Region> region;
  if (membership.rank == 0) {
    MOTLEY_ASSIGN(region, net::Region::create(full_name, bytes));
  }
  while (!region) {
    auto mapped = net::Region::map(full_name, bytes);
    if (mapped) {
      region = std::move(*mapped);
      break;
    }
    const std::string operation = fmt::format("opening shared memory ({})", mapped.error().message);
    MOTLEY_TRY(check_wait(session, deadline, operation, [] { return std::vector<int>{0}; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::unique_ptr<SharedGroup> group(new SharedGroup(session, std::move(region)));
  sched_getaffinity(0, sizeof(cpu_set_t), &group->slot(membership.rank).cores);
  MOTLEY_TRY(group->barrier(deadline));
  group->region_->unlink();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (int rank = 0; rank < membership.size(); ++rank) CPU_OR(&cores, &cores, &group->slot(rank).cores);
  group->may_spin_ = CPU_COUNT(&cores) >= membership.size();
  MOTLEY_TRY(group->barrier(deadline));
  return group;
}

Status SharedGroup::meet(Operation operation, std::span<const std::byte> mine, std::size_t total,
                         const Deadline& deadline) {
  if (!failed_) return failed_;
  ++sequence_;
  Slot& own = slot(rank_);
  own.said[sequence_ % 2] = {operation, total};
  if (!mine.empty()) std::memcpy(chunk(rank_), mine.data(), mine.size());
  own.sequence.store(sequence_, std::memory_order_release);
  auto& arrived = region_->at<Control>(0)->arrived;
  const auto target = static_cast<std::uint32_t>(sequence_ * static_cast<std::uint64_t>(size_));
  arrived.add(target);
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
    const auto& said = slot(rank).said[sequence_ % 2];
    if (said.operation != operation || said.total != total) {
      failed_ = fail(Error{ErrorCode::kInvalidInput,
                           fmt::format("{} with {} bytes: rank {} came with {} and {} bytes", name(), total, rank,
                                       kOperationNames[static_cast<int>(said.operation)], said.total),
                           rank});
    }
  }
  return failed_;
}

Result<std::vector<double>> SharedGroup::all_gather(std::span<const double> values, const Deadline& deadline) {
  std::vector<double> all(values.size() * static_cast<std::size_t>(size_));
  constexpr std::size_t kMost = kChunkBytes / sizeof(double);
  std::size_t begin = 0;
  do {
    const auto part = values.subspan(begin, std::min(kMost, values.size() - begin));
    MOTLEY_TRY(meet(Operation::kAllGather, std::as_bytes(part), values.size_bytes(), deadline));
    for (int rank = 0; rank < size_ && !part.empty(); ++rank) {
      std::memcpy(all.data() + static_cast<std::size_t>(rank) * values.size() + begin, chunk(rank), part.size_bytes());
    }
    begin += part.size();
  } while (begin < values.size());
  return all;
}

Status SharedGroup::all_reduce_sum(std::span<double> values, const Deadline& deadline) {
  MOTLEY_ASSIGN(const auto all, all_gather(values, deadline));
  for (std::size_t e = 0; e < values.size(); ++e) {
    values[e] = all[e];
    for (std::size_t at = e + values.size(); at < all.size(); at += values.size()) values[e] += all[at];
  }
  return {};
}

Status SharedGroup::broadcast(std::span<std::byte> bytes, int root, const Deadline& deadline) {
  std::size_t begin = 0;
  do {
    const auto part = bytes.subspan(begin, std::min(kChunkBytes, bytes.size() - begin));
    const auto mine = rank_ == root ? std::span<const std::byte>(part) : std::span<const std::byte>{};
    MOTLEY_TRY(meet(Operation::kBroadcast, mine, bytes.size(), deadline));
    if (rank_ != root && !part.empty()) std::memcpy(part.data(), chunk(root), part.size());
    begin += part.size();
  } while (begin < bytes.size());
  return {};
}

Status SharedGroup::barrier(const Deadline& deadline) {
  return meet(Operation::kBarrier, {}, 0, deadline);
}

Result<std::int64_t> SharedGroup::fetch_add(int counter, std::int64_t amount, const Deadline&) {
  MOTLEY_INVARIANT(counter >= 0 && counter < kCounters, "there is no shared counter {}", counter);
  return region_->at<Control>(0)->counters[counter].value.fetch_add(amount);
}

Status SharedGroup::store(int counter, std::int64_t value, const Deadline&) {
  MOTLEY_INVARIANT(counter >= 0 && counter < kCounters, "there is no shared counter {}", counter);
  region_->at<Control>(0)->counters[counter].value.store(value);
  return {};
}

}  // namespace motley::collective
