// Finds rows by id: an open-addressing hash table from 64-bit ids to 32-bit slots. It exists because a batch's lookups
// hide the latency of memory only when the one cache line that a lookup will read can be asked for beforehand, which
// general hash maps do not offer (or spread over two lines).
//
// Linear probing in a power of two of 16-byte entries, at most two thirds full; removal shifts back what follows, so
// there are no tombstones. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "motley/base/os/memory.h"

namespace motley::ps {

// A well-mixed hash of an id. Its highest bits choose the partition, its lowest the entry.
inline std::uint64_t hash_id(std::uint64_t id) {
  id = (id ^ (id >> 32)) * 0xd6e8feb86659fd93ULL;
  id = (id ^ (id >> 32)) * 0xd6e8feb86659fd93ULL;
  return id ^ (id >> 32);
}

class RowIndex {
 public:
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::size_t kBytesPerRow = 48;  // at most: of 16-byte entries a third is used just after doubling

  RowIndex() : entries_(kSmallest) {}

  std::size_t size() const { return size_; }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&entries_[hash & mask()]); }

  // The slot of the id, kNone where there is none. `hash` is hash_id(id) throughout.
  std::uint32_t find(std::uint64_t id, std::uint64_t hash) const {
    for (std::size_t at = hash & mask();; at = (at + 1) & mask()) {
      const Entry& entry = entries_[at];
      // A free entry that happens to hold the id says kNone, too.
      if (entry.id == id || entry.slot == kNone) return entry.slot;
    }
  }

  // The id must not be there yet.
  void insert(std::uint64_t id, std::uint64_t hash, std::uint32_t slot) {
    if (3 * (size_ + 1) > 2 * entries_.size()) grow();
    place({id, slot}, hash);
    ++size_;
  }

  // The id must be there.
  void erase(std::uint64_t id, std::uint64_t hash) {
    std::size_t hole = hash & mask();
    while (entries_[hole].id != id || entries_[hole].slot == kNone) hole = (hole + 1) & mask();
    for (std::size_t at = (hole + 1) & mask(); entries_[at].slot != kNone; at = (at + 1) & mask()) {
      // An entry may move into the hole unless its home lies between the hole and itself.
      const std::size_t home = hash_id(entries_[at].id) & mask();
      if (((at - home) & mask()) >= ((at - hole) & mask())) {
        entries_[hole] = entries_[at];
        hole = at;
      }
    }
    entries_[hole].slot = kNone;
    --size_;
  }

 private:
  static constexpr std::size_t kSmallest = 64;

  struct Entry {
    std::uint64_t id = 0;
    std::uint32_t slot = kNone;
  };

  std::size_t mask() const { return entries_.size() - 1; }

  void place(const Entry& entry, std::uint64_t hash) {
    std::size_t at = hash & mask();
    while (entries_[at].slot != kNone) at = (at + 1) & mask();
    entries_[at] = entry;
  }

  void grow() {
    std::vector<Entry, LargeAllocator<Entry>> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.slot != kNone) place(entry, hash_id(entry.id));
    }
  }

  std::vector<Entry, LargeAllocator<Entry>> entries_;
  std::size_t size_ = 0;
};

}  // namespace motley::ps
