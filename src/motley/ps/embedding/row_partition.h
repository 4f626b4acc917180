// One partition of a sparse table: its rows in memory, found by id, and the rules by which they come and go. It is the
// unit of locking: whoever calls it holds its mutex, for the time of memory accesses only, except while rows that leave
// are handed to the cold tier's write buffer.
//
// Who is hot. CLOCK with frequencies: a row counts its pulls up to fifteen; when room is needed, a hand goes round and
// halves the count of every row that it passes (so old fame decays with the table's own turnover, not with wall time)
// and takes the first unpinned row that is at zero. A row enters at zero behind the hand: it has one revolution to be
// asked for again. Rows that were prefetched and not yet used are passed over for a few revolutions.
//
// What is written. A row is dirty from its first push until it has been written to the cold tier; only dirty rows are
// written when they leave. A row that was never pushed is not kept anywhere: its initializer gives it again.
//
// Checkpoints. begin_save() fixes a moment; save_some() then hands out rows as they were at that moment, in pieces. A
// row that changes or leaves before its turn is copied aside first (copy on write), so nobody waits for a checkpoint.
// The copies are memory beyond the budget: at most one of each row in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "motley/ps/embedding/cold_store.h"
#include "motley/ps/protocol/row_index.h"

namespace motley::ps {

// Sizes of a row. In memory: id, state of residence, generation, floats. A record of the cold tier is the last two.
struct RowShape {
  std::size_t dimension = 0;
  std::size_t floats = 0;  // weights and the optimizer's state

  std::size_t payload_bytes() const { return floats * sizeof(float); }
  std::size_t record_bytes() const { return sizeof(std::uint32_t) + payload_bytes(); }
  std::size_t stride() const { return (sizeof(std::uint64_t) + sizeof(std::uint32_t) + record_bytes() + 15) / 16 * 16; }
  // What a row costs a memory budget.
  std::size_t resident_bytes() const { return stride() + RowIndex::kBytesPerRow; }
};

struct RowHeader {
  std::uint64_t id = 0;
  std::uint16_t pins = 0;           // running pushes that rely on its slot
  std::uint8_t frequency : 4 = 0;   // of recent pulls
  std::uint8_t protection : 4 = 0;  // revolutions that a prefetched, unused row may still be passed over
  bool used : 1 = false;            // the slot holds a row
  bool dirty : 1 = false;           // changed since the cold tier had it
  bool pushed : 1 = false;          // part of the table; before, it merely stands for what the initializer gives
  bool counted : 1 = false;         // in the table's number of rows
  std::uint32_t generation = 0;     // the table's epoch when it last changed
};
static_assert(sizeof(RowHeader) == 16 && offsetof(RowHeader, generation) == 12);

struct RowCounters {
  std::uint64_t hits = 0;           // ids that were found in memory
  std::uint64_t misses = 0;         // ids that were not
  std::uint64_t evictions = 0;      // rows that left memory
  std::uint64_t cold_writes = 0;    // rows written to the cold tier
  std::uint64_t prefetched = 0;     // rows kept for a use that was announced
  std::uint64_t prefetch_hits = 0;  // of these, used while still in memory
};

class RowPartition {
 public:
  // Room for `capacity` rows; 0 is no bound. Rows leave for `cold`, which may be null where there is no bound.
  RowPartition(const RowShape& shape, std::size_t capacity, ColdStore* cold);

  std::mutex mutex;
  RowCounters counters;

  std::size_t rows() const { return index_.size(); }
  void prefetch(std::uint64_t hash) const { index_.prefetch(hash); }
  std::uint32_t find(std::uint64_t id, std::uint64_t hash) const { return index_.find(id, hash); }
  RowHeader& header(std::uint32_t slot) { return *reinterpret_cast<RowHeader*>(at(slot)); }
  float* values(std::uint32_t slot) { return reinterpret_cast<float*>(at(slot) + sizeof(RowHeader)); }
  // The header and the first `bytes` of the floats.
  void prefetch_row(std::uint32_t slot, std::size_t bytes) const {
    const std::byte* row = at(slot);
    for (std::size_t offset = 0; offset < sizeof(RowHeader) + bytes; offset += 64) __builtin_prefetch(row + offset, 1);
  }
  void use(RowHeader& row);  // counts a pull

  // Makes room for `rows` more and says how many there is room for: fewer where running pushes hold the rest.
  Result<std::size_t> make_room(std::size_t rows);
  // The id must not be here. Goes beyond the capacity where make_room() gave too little; later ones make up for it.
  std::uint32_t insert(std::uint64_t id, std::uint64_t hash, const std::byte* record);
  void remove(std::uint32_t slot);
  void protect(RowHeader& row);  // a prefetched row, until its use or the end of its revolutions
  bool may_protect() const { return capacity_ == 0 || protected_ < capacity_ / 2; }

  // For reads of the cold tier without the lock: a record that was read after stamp() is the row's newest state if the
  // row is not here and has not left since. Tells leaving rows apart by part of their hash: errs on the safe side.
  std::uint64_t stamp() const { return stamp_; }
  bool unchanged_since(std::uint64_t hash, std::uint64_t stamp) const { return left_[hash % kLeftClasses] <= stamp; }

  // To be called before a row's floats change.
  void before_change(std::uint32_t slot);

  // Rows that changed after epoch `since` and up to epoch `cut` and that the cold tier does not have.
  void begin_save(std::uint32_t since, std::uint32_t cut);
  // Appends some of them as (id, floats) to `bytes`; false once all are out, which ends the saving.
  bool save_some(std::vector<std::byte>& bytes);
  void end_save();

 private:
  static constexpr std::size_t kSlabBytes = std::size_t{8} << 20;
  static constexpr std::size_t kLeftClasses = 8192;
  static constexpr std::uint32_t kSavedAtOnce = 1024;
  static constexpr std::uint8_t kMaxFrequency = 15;
  static constexpr std::uint8_t kProtectedRevolutions = 8;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::byte* at(std::uint32_t slot) const {
    return slabs_[slot >> slab_shift_].get() + (slot & ((1U << slab_shift_) - 1)) * stride_;
  }
  std::uint32_t take_slot();
  Status evict(std::size_t rows);
  bool must_save(const RowHeader& row, std::uint32_t slot) const {
    return saving_ && row.dirty && row.generation > since_ && row.generation <= cut_ && slot >= walked_;
  }
  void append(std::uint32_t slot, std::vector<std::byte>& bytes);

  const RowShape shape_;
  const std::size_t stride_;
  const std::size_t capacity_;
  ColdStore* const cold_;
  int slab_shift_ = 0;

  RowIndex index_;
  std::vector<std::unique_ptr<std::byte[], Free>> slabs_;
  std::uint32_t slots_ = 0;  // ever taken
  std::vector<std::uint32_t> free_;
  std::uint32_t hand_ = 0;
  std::size_t protected_ = 0;

  std::uint64_t stamp_ = 0;
  std::vector<std::uint64_t> left_;  // the stamp when a row of this class last left

  bool saving_ = false;
  std::uint32_t since_ = 0;
  std::uint32_t cut_ = 0;
  std::uint32_t walked_ = 0;  // slots before it are saved
  std::vector<std::byte> aside_;
};

// A batch of ids made ready for a table in partitions: grouped by partition, and for pushes with equal ids merged, so
// that each partition is locked once and each row is visited once.
class RowBatch {
 public:
  static constexpr std::uint32_t kEnd = 0xffffffff;

  struct Item {
    std::uint64_t id = 0;
    std::uint64_t hash = 0;
    std::uint32_t first = 0;  // position in the batch; of the first of equal ids, once merged
    std::uint32_t last = 0;   // position of the last of equal ids
    std::uint32_t slot = RowIndex::kNone;
  };

  // Partition p gets the ids whose hash begins with the `bits` bits of p, in the batch's order.
  void group(std::span<const std::uint64_t> ids, int bits);
  // Leaves one item for each id; next() leads through the positions of equal ids in the batch's order.
  void merge();

  std::size_t size() const { return items_.size(); }
  std::span<Item> of(std::size_t partition) { return {items_.data() + begin_[partition], count_[partition]}; }
  // The position of the next equal id after a position, kEnd after the last. Only once merged.
  std::uint32_t next(std::uint32_t position) const { return next_[position]; }

 private:
  std::vector<Item> items_;
  std::vector<std::uint32_t> begin_;
  std::vector<std::uint32_t> count_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> table_;  // of merge(): hash -> index in a partition's items + 1
};

}  // namespace motley::ps
