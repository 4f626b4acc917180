// Collective operations in memory that all ranks of one host map.
//
// Each rank has an arena that all map. A buffer that lies in the rank's arena is used where it is; of any other the
// arena holds a copy while it is needed. Operations are cut into segments of at most 1 MiB a rank, in the same way on
// all ranks wherever their buffers lie, and each segment goes through one of the slots, which are used in turn:
//
//   1. Each rank announces its segment: where it stands in its arena, and what the operation is. That is done when the
//      operation is started, as far as slots are free, so that a rank whose thread has no processor holds nobody up.
//   2. When all have announced it, an all-reduce is summed: whoever has time claims one chunk after the other, adds it
//   up
//      over all ranks' memory in the order of the ranks, and writes the sum into all ranks' memory in the same pass.
//      That is reduce-scatter and all-gather in one; each value is read once and written once per rank. Chunks are
//      claimed and not assigned, so that a slow rank delays nobody with its work; the arithmetic is the same whoever
//      does it.
//   3. Each rank takes what it needs out of the others' memory: the parts of an all-gather, root's values, its own part
//   of
//      a reduce-scatter's sum; or its own copy of an all-reduced buffer that does not lie in the arena.
//   4. Each rank leaves the slot. The last one to leave clears it for its next use.
//
// Why nothing is read or written at the wrong time. What a rank announces it writes before it counts itself into
// `arrived`, and others read it after they have seen all arrive. All chunks are written when `reduced` has counted all
// of them. A slot, and a copy that was announced in it, is used again only when `freed` has counted its use, that is
// after all ranks have left; so whatever a rank that has not left sees in it belongs to its segment. A buffer in the
// arena belongs to its owner again after step 2 of its last segment, when all reads and writes of it are over.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "motley/base/os/shared_counter.h"
#include "motley/collective/communicator.h"
#include "motley/collective/gradient_reducer.h"
#include "motley/collective/shared_arena.h"
#include "motley/collective/waiting.h"
#include "motley/net/region.h"

namespace motley::collective {
namespace {

class SharedMemoryCommunicator final : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> create(net::Session& session, const Deadline& deadline) {
    std::unique_ptr<SharedMemoryCommunicator> made(new SharedMemoryCommunicator(session));
    MOTLEY_TRY(made->map(deadline));
    made->begin();
    return made;
  }

  ~SharedMemoryCommunicator() override { end(); }

  bool allocates() const override { return true; }
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes) override {
    MOTLEY_TRY(health());
    return SharedArena::allocate(arena_, bytes);
  }

  const char* transport() const override { return "shared-memory"; }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kSegmentBytes = 1 << 20;
  static constexpr std::uint64_t kSlots =
      128;                                   // so many segments of small or large buckets can wait for a rank's thread
  static constexpr std::size_t kCopies = 4;  // segments of which the arena holds copies at a time
  // Large enough that claiming costs nothing, small enough that the chunks of a few ranks stay in a second-level cache.
  static constexpr std::size_t kChunkBytes = 128 << 10;
  static constexpr std::size_t kSmallestChunkBytes = 4 << 10;

  // What a rank says of its segment in a slot.
  struct alignas(kLine) Announcement {
    std::atomic<std::uint64_t> segment;  // number + 1
    std::atomic<std::uint64_t> left;     // the same, of the one that it left last
    std::uint64_t number;                // of the operation
    std::uint64_t bytes;                 // of the whole operation, on this rank
    std::uint64_t offset;                // of the segment in the rank's arena
    std::int32_t root;
    CollectiveKind kind;
    ElementType type;
    Reduction reduction;
    std::atomic<bool> working;  // it has a chunk in hand
  };

  struct Slot {
    SharedCounter arrived;                             // ranks that have announced their segment
    SharedCounter reduced;                             // chunks that are summed
    SharedCounter freed;                               // uses that are over; grows, while the others start from 0 again
    alignas(kLine) std::atomic<std::uint32_t> claims;  // of chunks
    std::atomic<std::uint32_t> left;                   // ranks
  };

  // A part of each rank's buffers.
  struct Segment {
    std::uint64_t number;
    std::size_t begin;  // in bytes, in the buffer or in each part of it
    std::size_t bytes;
    bool is_copied;  // its values are announced in a copy
  };

  explicit SharedMemoryCommunicator(net::Session& session) : Communicator(session) {}

  // Every rank makes its arena and maps the others'; rank 0 makes the slots.
  Status map(const Deadline& deadline) {
    MOTLEY_ASSIGN(const auto group, make_shared_group(session_, "communicator", deadline));
    may_spin_ = group->may_spin();
    const std::size_t capacity = SharedArena::capacity(size_);
    const std::size_t slots_bytes = kSlots * slot_bytes();
    MOTLEY_ASSIGN(arena_, SharedArena::create(capacity));
    MOTLEY_ASSIGN(copies_, SharedArena::allocate(arena_, kCopies * kSegmentBytes));
    net::RegionAddress at;
    if (rank_ == 0) {
      MOTLEY_ASSIGN(slots_, net::Region::create(slots_bytes));
      at = slots_->address();
    }
    MOTLEY_TRY(group->broadcast(std::as_writable_bytes(std::span(&at, 1)), 0, deadline));
    if (rank_ != 0) {
      MOTLEY_ASSIGN(slots_, net::Region::map(at, slots_bytes));
    }
    MOTLEY_ASSIGN(const auto addresses, all_addresses(*group, arena_->region(), deadline));
    others_.resize(static_cast<std::size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != rank_) {
        MOTLEY_ASSIGN(others_[rank], net::Region::map_uncommitted(addresses[rank], capacity));
      }
      arenas_.push_back(rank == rank_ ? arena_->region().data() : others_[rank]->data());
    }
    return group->barrier(deadline);  // so that nobody ends before all have mapped what is its own
  }

  std::size_t slot_bytes() const { return sizeof(Slot) + static_cast<std::size_t>(size_) * sizeof(Announcement); }
  Slot& slot(std::uint64_t segment) const { return *slots_->at<Slot>(segment % kSlots * slot_bytes()); }
  Announcement& announcement(std::uint64_t segment, int rank) const {
    return slots_->at<Announcement>(segment % kSlots * slot_bytes() + sizeof(Slot))[rank];
  }
  const std::byte* announced(std::uint64_t segment, int rank) const {
    return arenas_[rank] + announcement(segment, rank).offset;
  }
  // Uses of a segment's slot before it.
  static std::uint32_t earlier_uses(std::uint64_t segment) { return static_cast<std::uint32_t>(segment / kSlots); }

  // Parts of the announced buffer that lie behind each other in a segment: of a reduce-scatter, a piece for each rank.
  std::size_t parts(const Collective& what) const {
    return what.kind == CollectiveKind::kReduceScatter ? static_cast<std::size_t>(size_) : 1;
  }
  std::size_t part_bytes(const Collective& what) const {
    if (what.kind == CollectiveKind::kBroadcast || what.kind == CollectiveKind::kReduceScatter)
      return what.output.size();
    return what.input.size();
  }
  // Of each part, in whole cache lines.
  std::size_t segment_bytes(const Collective& what) const {
    return std::max(kLine, kSegmentBytes / parts(what) / kLine * kLine);
  }

  std::uint64_t count_segments(const Collective& what) const override {
    return std::max<std::uint64_t>(1, (part_bytes(what) + segment_bytes(what) - 1) / segment_bytes(what));
  }

  bool is_in_arena(const Collective& what) const {
    return what.kind == CollectiveKind::kAllReduce && arena_->offset(what.input.data(), what.input.size());
  }

  Segment segment(const Pending& pending, std::uint64_t index) const {
    const Collective& what = pending.what;
    const std::size_t begin = index * segment_bytes(what);
    const bool has_values = !what.input.empty() && (what.kind != CollectiveKind::kBroadcast || what.root == rank_);
    return {pending.first_segment + index, begin, std::min(segment_bytes(what), part_bytes(what) - begin),
            has_values && !is_in_arena(what)};
  }

  // The last rank to leave frees the slot, so this rank has left too if it is free. Both are read nevertheless: that
  // rank frees it through another mapping of the memory, and the order of this rank's own two threads, of which one
  // leaves and one announces, is to be seen in this process alone, as the thread sanitizer looks at it.
  bool all_have_left(std::uint64_t segment_number) const {
    return slot(segment_number).freed.reached(earlier_uses(segment_number) + 1) &&
           announcement(segment_number, rank_).left.load(std::memory_order_acquire) > segment_number;
  }

  void queued() override { announce(); }

  // Announces segments of the queued operations, in order, as far as slots and places for copies are free. Returns the
  // segment whose slot must be freed first for the next one, where there is a next one. Under the mutex.
  std::optional<std::uint64_t> announce() {
    for (Pending& pending : queue_) {
      for (; pending.announced < pending.segments; ++pending.announced) {
        const Segment next = segment(pending, pending.announced);
        if (next.number >= kSlots && !all_have_left(next.number - kSlots)) return next.number - kSlots;
        std::size_t offset = 0;
        if (next.is_copied) {
          auto& used_by = copy_used_by_[next_copy_];
          if (used_by && !all_have_left(*used_by)) return *used_by;
          std::byte* const copy = copies_.get() + next_copy_ * kSegmentBytes;
          copy_in(pending.what, next, copy);
          offset = static_cast<std::size_t>(copy - arenas_[rank_]);
          used_by = next.number;
          next_copy_ = (next_copy_ + 1) % kCopies;
        } else if (is_in_arena(pending.what)) {
          offset = static_cast<std::size_t>(pending.what.input.data() - arenas_[rank_]) + next.begin;
        }
        announce(pending, next, offset);
      }
    }
    return {};
  }

  void announce(const Pending& pending, const Segment& next, std::size_t offset) {
    const Collective& what = pending.what;
    Announcement& own = announcement(next.number, rank_);
    own.number = pending.number;
    own.bytes = part_bytes(what);
    own.offset = offset;
    own.root = what.root;
    own.kind = what.kind;
    own.type = what.type;
    own.reduction = what.reduction;
    own.segment.store(next.number + 1, std::memory_order_release);
    slot(next.number).arrived.add(static_cast<std::uint32_t>(size_));
  }

  void copy_in(const Collective& what, const Segment& from, std::byte* copy) const {
    for (std::size_t part = 0; part < parts(what) && from.bytes > 0; ++part) {
      std::memcpy(copy + part * from.bytes, what.input.data() + part * part_bytes(what) + from.begin, from.bytes);
    }
  }

  Status finish(Pending& pending) override {
    for (std::uint64_t index = 0; index < pending.segments; ++index) {
      const Segment current = segment(pending, index);
      MOTLEY_TRY(wait_for_place(pending, index));
      MOTLEY_TRY(wait_for_all(pending, current));
      if (pending.what.kind == CollectiveKind::kAllReduce) MOTLEY_TRY(reduce(pending, current));
      take(pending.what, current);
      leave(current.number);
    }
    return {};
  }

  // Until the segment is announced.
  Status wait_for_place(const Pending& pending, std::uint64_t index) {
    for (;;) {
      std::optional<std::uint64_t> blocking;
      {
        const std::lock_guard lock(mutex_);
        blocking = announce();
        if (pending.announced > index) return {};
      }
      MOTLEY_TRY(wait_until_reached(slot(*blocking).freed, earlier_uses(*blocking) + 1, may_spin_, [&] {
        return check(pending, [&] { return ranks_behind(*blocking, &Announcement::left); });
      }));
    }
  }

  // Until all ranks have announced the segment, of the same operation.
  Status wait_for_all(const Pending& pending, const Segment& current) {
    MOTLEY_TRY(wait_until_reached(slot(current.number).arrived, static_cast<std::uint32_t>(size_), may_spin_, [&] {
      return check(pending, [&] { return ranks_behind(current.number, &Announcement::segment); });
    }));
    const Announcement& own = announcement(current.number, rank_);
    for (int rank = 0; rank < size_; ++rank) {
      const Announcement& theirs = announcement(current.number, rank);
      if (theirs.kind != own.kind || theirs.type != own.type || theirs.bytes != own.bytes || theirs.root != own.root ||
          theirs.reduction != own.reduction || theirs.number != own.number) {
        return fail(Error{ErrorCode::kInvalidInput,
                          fmt::format("{}: rank {} called {}, this rank {}: all ranks must call the same operations in "
                                      "the same order",
                                      pending.name(), session_.job_rank(rank), describe(theirs), describe(own)),
                          session_.job_rank(rank)});
      }
    }
    return {};
  }

  static std::string describe(const Announcement& said) {
    const bool reduces = said.kind == CollectiveKind::kAllReduce || said.kind == CollectiveKind::kReduceScatter;
    const std::string how = said.kind == CollectiveKind::kBroadcast ? fmt::format(" from rank {}", said.root)
                            : reduces                               ? fmt::format(" ({})", to_string(said.reduction))
                                                                    : "";
    return fmt::format("{}{} of {} bytes ({})", to_string(said.kind), how, said.bytes, to_string(said.type));
  }

  // Ranks that have not announced, or not left, a segment.
  std::vector<int> ranks_behind(std::uint64_t segment_number,
                                std::atomic<std::uint64_t> Announcement::* progress) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      if ((announcement(segment_number, rank).*progress).load(std::memory_order_acquire) <= segment_number) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  // Sums chunks until none is left, and waits for those that other ranks have in hand.
  Status reduce(const Pending& pending, const Segment& current) {
    const Collective& what = pending.what;
    Slot& shared = slot(current.number);
    Announcement& own = announcement(current.number, rank_);
    const std::size_t share = current.bytes / static_cast<std::size_t>(size_) / kLine * kLine;
    const std::size_t chunk_bytes = std::clamp(share, kSmallestChunkBytes, kChunkBytes);
    const auto chunks = static_cast<std::uint32_t>((current.bytes + chunk_bytes - 1) / chunk_bytes);
    std::vector<std::byte*> outputs(static_cast<std::size_t>(size_));
    own.working.store(true);
    for (std::uint32_t chunk; (chunk = shared.claims.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      const std::size_t begin = chunk * chunk_bytes;
      for (int rank = 0; rank < size_; ++rank) {
        outputs[rank] = arenas_[rank] + announcement(current.number, rank).offset + begin;
      }
      const std::vector<const std::byte*> inputs(outputs.begin(), outputs.end());
      sum_elements(what.type, inputs, scale(what), outputs,
                   std::min(chunk_bytes, current.bytes - begin) / width(what.type));
      shared.reduced.add(chunks);
    }
    own.working.store(false);
    return wait_until_reached(shared.reduced, chunks, may_spin_, [&] {
      return check(pending, [&] {
        std::vector<int> ranks;
        for (int rank = 0; rank < size_; ++rank) {
          if (announcement(current.number, rank).working.load()) ranks.push_back(rank);
        }
        return ranks;
      });
    });
  }

  double scale(const Collective& what) const { return what.reduction == Reduction::kAverage ? 1.0 / size_ : 1.0; }

  void take(const Collective& what, const Segment& from) {
    if (from.bytes == 0) return;
    switch (what.kind) {
      case CollectiveKind::kAllReduce:
        if (from.is_copied) std::memcpy(what.output.data() + from.begin, announced(from.number, rank_), from.bytes);
        return;
      case CollectiveKind::kReduceScatter: {
        std::vector<const std::byte*> inputs;
        for (int rank = 0; rank < size_; ++rank) {
          inputs.push_back(announced(from.number, rank) + static_cast<std::size_t>(rank_) * from.bytes);
        }
        std::byte* const output[] = {what.output.data() + from.begin};
        return sum_elements(what.type, inputs, scale(what), output, from.bytes / width(what.type));
      }
      case CollectiveKind::kAllGather:
        for (int rank = 0; rank < size_; ++rank) {
          std::byte* const to = what.output.data() + static_cast<std::size_t>(rank) * what.input.size() + from.begin;
          std::memcpy(to, rank == rank_ ? what.input.data() + from.begin : announced(from.number, rank), from.bytes);
        }
        return;
      case CollectiveKind::kBroadcast:
        if (what.root != rank_) {
          std::memcpy(what.output.data() + from.begin, announced(from.number, what.root), from.bytes);
        }
        return;
      case CollectiveKind::kBarrier:
        return;
    }
  }

  void leave(std::uint64_t segment_number) {
    Slot& used = slot(segment_number);
    announcement(segment_number, rank_).left.store(segment_number + 1, std::memory_order_release);
    if (used.left.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<std::uint32_t>(size_)) return;
    used.arrived.value.store(0);
    used.reduced.value.store(0);
    used.claims.store(0);
    used.left.store(0);
    used.freed.add(earlier_uses(segment_number) + 1);
  }

  bool may_spin_ = false;
  std::unique_ptr<net::Region> slots_;
  std::shared_ptr<SharedArena> arena_;                // of this rank
  std::vector<std::unique_ptr<net::Region>> others_;  // by rank; the own one null
  std::vector<std::byte*> arenas_;                    // by rank, where they begin

  // Under the mutex.
  std::shared_ptr<std::byte> copies_;
  std::optional<std::uint64_t> copy_used_by_[kCopies];  // the segment
  std::size_t next_copy_ = 0;
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_shared_memory_communicator(net::Session& session, const Deadline& deadline) {
  return SharedMemoryCommunicator::create(session, deadline);
}

}  // namespace motley::collective
