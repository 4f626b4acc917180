#include "motley/ps/row_batch.h"

#include <algorithm>
#include <bit>

namespace motley::ps {

// Counting sort: hashes, sizes, beginnings, places. Items of a partition keep the batch's order.
void RowBatch::group(std::span<const std::uint64_t> ids, int bits) {
  const std::size_t partitions = std::size_t{1} << bits;
  const auto partition_of = [bits](std::uint64_t hash) { return bits == 0 ? 0 : hash >> (64 - bits); };
  begin_.assign(partitions, 0);
  count_.assign(partitions, 0);
  items_.resize(ids.size());
  for (const std::uint64_t id : ids) {
    ++count_[partition_of(hash_id(id))];
  }
  for (std::size_t p = 1; p < partitions; ++p) {
    begin_[p] = begin_[p - 1] + count_[p - 1];
  }
  std::ranges::fill(count_, 0);
  for (std::uint32_t position = 0; position < ids.size(); ++position) {
    const std::uint64_t hash = hash_id(ids[position]);
    const std::size_t p = partition_of(hash);
    items_[begin_[p] + count_[p]++] = {ids[position], hash, position, position, RowIndex::kNone};
  }
}

void RowBatch::merge() {
  next_.assign(items_.size(), kEnd);
  for (std::size_t p = 0; p < count_.size(); ++p) {
    const std::span<Item> items = of(p);
    const std::size_t mask = std::bit_ceil(2 * items.size() + 1) - 1;
    table_.assign(mask + 1, 0);
    std::uint32_t kept = 0;
    for (const Item& item : items) {
      std::size_t at = item.hash & mask;
      while (table_[at] != 0 && items[table_[at] - 1].id != item.id) {
        at = (at + 1) & mask;
      }
      if (table_[at] != 0) {
        Item& equal = items[table_[at] - 1];
        next_[equal.last] = item.first;
        equal.last = item.first;
      } else {
        items[kept] = item;
        table_[at] = ++kept;
      }
    }
    count_[p] = kept;
  }
}

}  // namespace motley::ps
