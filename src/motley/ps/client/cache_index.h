// Which hot rows a worker keeps, in which of so many slots, and after which step each was as it is there. Where the
// values of a slot are, in this machine's memory or a device's, is the matter of who asks. Not thread-safe.
//
// The bound is the one of stale synchronous parallel: a batch that wants rows as they are after step t gets each as it
// was after step t - steps or later. A worker's own gradients are no exception: rows that it pushed are used from the
// cache until they are too old.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/protocol/row_index.h"

namespace motley::ps {

class CacheIndex {
 public:
  static constexpr std::uint32_t kNone = RowIndex::kNone;

  // Keeps at most `capacity` rows (1 or more), the often used by CLOCK with frequencies, as the table does.
  CacheIndex(std::size_t capacity, std::int64_t steps) : capacity_(capacity), steps_(steps) {
    MOTLEY_INVARIANT(capacity > 0, "a cache needs room for a row");
  }

  std::size_t slots() const { return entries_.size(); }  // that were ever in use
  // The slot of an id, whatever its age; kNone where it is not kept.
  std::uint32_t find_slot(std::uint64_t id) const { return index_.find(id, hash_id(id)); }

  // The ids of another batch come now.
  void begin_batch() { ++batch_; }
  struct Found {
    std::uint32_t slot = kNone;  // kNone: not kept, or too old for rows as they are after step `after`
    bool is_first = false;       // of its batch
  };
  Found find(std::uint64_t id, std::int64_t after) {
    const std::uint32_t slot = find_slot(id);
    if (slot == kNone || entries_[slot].after < after - steps_) return {};
    Entry& entry = entries_[slot];
    if (entry.batch == batch_) return {slot, false};
    entry.batch = batch_;
    entry.frequency = std::min<std::uint8_t>(entry.frequency + 1, kMaxFrequency);
    return {slot, true};
  }

  // The slot for a row as it is after step `after`, which may have been another row's; kNone where a later one is kept.
  std::uint32_t put(std::uint64_t id, std::int64_t after) {
    std::uint32_t slot = find_slot(id);
    if (slot == kNone) {
      slot = take_slot();
      index_.insert(id, hash_id(id), slot);
      entries_[slot] = {.id = id, .after = after};
    } else if (entries_[slot].after > after) {
      return kNone;
    }
    entries_[slot].after = after;
    return slot;
  }

 private:
  static constexpr std::uint8_t kMaxFrequency = 15;

  struct Entry {
    std::uint64_t id = 0;
    std::int64_t after = 0;   // the step after which the row was like this
    std::uint64_t batch = 0;  // the last one that it was found for
    std::uint8_t frequency = 0;
  };

  std::uint32_t take_slot() {
    if (entries_.size() < capacity_) {
      entries_.emplace_back();
      return static_cast<std::uint32_t>(entries_.size() - 1);
    }
    for (;;) {
      const std::uint32_t slot = hand_;
      hand_ = hand_ + 1 == entries_.size() ? 0 : hand_ + 1;
      Entry& entry = entries_[slot];
      if (entry.frequency == 0) {
        index_.erase(entry.id, hash_id(entry.id));
        return slot;
      }
      entry.frequency /= 2;
    }
  }

  const std::size_t capacity_;
  const std::int64_t steps_;
  std::uint64_t batch_ = 0;
  RowIndex index_;
  std::vector<Entry> entries_;
  std::uint32_t hand_ = 0;
};

}  // namespace motley::ps
