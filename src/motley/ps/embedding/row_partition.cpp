#include "motley/ps/embedding/row_partition.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "motley/base/os/memory.h"

namespace motley::ps {

RowPartition::RowPartition(const RowShape& shape, std::size_t capacity, ColdStore* cold)
    : shape_(shape),
      stride_(shape.stride()),
      capacity_(capacity),
      cold_(cold),
      left_(cold == nullptr ? 0 : kLeftClasses) {
  slab_shift_ = std::bit_width(std::max<std::size_t>(kSlabBytes / stride_, 1)) - 1;
}

void RowPartition::use(RowHeader& row) {
  row.frequency = std::min<std::uint8_t>(row.frequency + 1, kMaxFrequency);
  if (row.protection > 0) {
    row.protection = 0;
    --protected_;
    ++counters.prefetch_hits;
  }
}

void RowPartition::protect(RowHeader& row) {
  protected_ += row.protection == 0 ? 1 : 0;
  row.protection = kProtectedRevolutions;
  ++counters.prefetched;
}

Result<std::size_t> RowPartition::make_room(std::size_t rows) {
  if (capacity_ == 0) return rows;
  const std::size_t wanted = std::min(rows, capacity_);
  if (index_.size() + wanted > capacity_) MOTLEY_TRY(evict(index_.size() + wanted - capacity_));
  return index_.size() < capacity_ ? std::min(rows, capacity_ - index_.size()) : 0;
}

Status RowPartition::evict(std::size_t rows) {
  std::vector<std::uint32_t> victims;
  std::vector<std::uint64_t> dirty_ids;
  std::vector<const std::byte*> dirty_records;
  // Enough steps for any count to halve to zero and any protection to run out; after that all others are pinned.
  const std::size_t max_steps = (kProtectedRevolutions + std::bit_width(kMaxFrequency) + 1U) * std::size_t{slots_};
  for (std::size_t step = 0; step < max_steps && victims.size() < rows; ++step) {
    const std::uint32_t slot = hand_;
    hand_ = hand_ + 1 == slots_ ? 0 : hand_ + 1;
    RowHeader& row = header(slot);
    if (!row.used || row.pins > 0) continue;
    if (row.protection > 0) {
      protected_ -= --row.protection == 0 ? 1 : 0;
    } else if (row.frequency > 0) {
      row.frequency /= 2;
    } else {
      row.pins = 1;  // so that another revolution does not take it twice
      victims.push_back(slot);
      if (row.dirty) {
        dirty_ids.push_back(row.id);
        dirty_records.push_back(at(slot) + offsetof(RowHeader, generation));
      }
    }
  }
  const Status written = dirty_ids.empty() ? Status() : cold_->write(dirty_ids, dirty_records);
  ++stamp_;
  for (const std::uint32_t slot : victims) {
    RowHeader& row = header(slot);
    row.pins = 0;
    if (!written) continue;
    if (row.dirty) {
      before_change(slot);
      left_[hash_id(row.id) % kLeftClasses] = stamp_;
    }
    remove(slot);
  }
  if (written) {
    counters.evictions += victims.size();
    counters.cold_writes += dirty_ids.size();
  }
  return written;
}

std::uint32_t RowPartition::take_slot() {
  if (!free_.empty()) {
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  if (slots_ == slabs_.size() << slab_shift_) {
    // Slabs double up to their full size, so that a small table stays small.
    slabs_.emplace_back(static_cast<std::byte*>(allocate_large(stride_ << slab_shift_)));
  }
  return slots_++;
}

std::uint32_t RowPartition::insert(std::uint64_t id, std::uint64_t hash, const std::byte* record) {
  const std::uint32_t slot = take_slot();
  RowHeader& row = *new (at(slot)) RowHeader;
  row.id = id;
  row.used = true;
  std::memcpy(at(slot) + offsetof(RowHeader, generation), record, shape_.record_bytes());
  row.pushed = row.counted = row.generation > 0;
  index_.insert(id, hash, slot);
  return slot;
}

void RowPartition::remove(std::uint32_t slot) {
  RowHeader& row = header(slot);
  index_.erase(row.id, hash_id(row.id));
  protected_ -= row.protection > 0 ? 1 : 0;
  row.used = false;
  free_.push_back(slot);
}

void RowPartition::append(std::uint32_t slot, std::vector<std::byte>& bytes) {
  const auto* id = reinterpret_cast<const std::byte*>(&header(slot).id);
  const auto* payload = reinterpret_cast<const std::byte*>(values(slot));
  bytes.insert(bytes.end(), id, id + sizeof(std::uint64_t));
  bytes.insert(bytes.end(), payload, payload + shape_.payload_bytes());
}

void RowPartition::before_change(std::uint32_t slot) {
  if (must_save(header(slot), slot)) append(slot, aside_);
}

void RowPartition::begin_save(std::uint32_t since, std::uint32_t cut) {
  saving_ = true;
  since_ = since;
  cut_ = cut;
  walked_ = 0;
}

bool RowPartition::save_some(std::vector<std::byte>& bytes) {
  bytes.insert(bytes.end(), aside_.begin(), aside_.end());
  aside_.clear();
  const std::uint32_t end = std::min(slots_, walked_ + kSavedAtOnce);
  for (std::uint32_t slot = walked_; slot < end; ++slot) {
    const RowHeader& row = header(slot);
    if (row.used && must_save(row, slot)) append(slot, bytes);
  }
  walked_ = end;
  if (walked_ < slots_) return true;
  end_save();
  return false;
}

void RowPartition::end_save() {
  saving_ = false;
  aside_ = {};
}

// Counting sort: hashes, sizes, beginnings, places. Items of a partition keep the batch's order.
void RowBatch::group(std::span<const std::uint64_t> ids, int bits) {
  const std::size_t partitions = std::size_t{1} << bits;
  const auto find_partition = [bits](std::uint64_t hash) { return bits == 0 ? 0 : hash >> (64 - bits); };
  begin_.assign(partitions, 0);
  count_.assign(partitions, 0);
  items_.resize(ids.size());
  for (const std::uint64_t id : ids) ++count_[find_partition(hash_id(id))];
  for (std::size_t p = 1; p < partitions; ++p) begin_[p] = begin_[p - 1] + count_[p - 1];
  std::ranges::fill(count_, 0);
  for (std::uint32_t position = 0; position < ids.size(); ++position) {
    const std::uint64_t hash = hash_id(ids[position]);
    const std::size_t p = find_partition(hash);
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
      while (table_[at] != 0 && items[table_[at] - 1].id != item.id) at = (at + 1) & mask;
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
