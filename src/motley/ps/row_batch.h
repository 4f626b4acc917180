// A batch of ids made ready for a table in partitions: grouped by partition, and for pushes with equal ids merged, so
// that each partition is locked once and each row is visited once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "motley/collective/row_index.h"

namespace motley::ps {

using collective::hash_id;
using collective::RowIndex;

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
