#include "motley/collective/sparse_cache.h"

#include <algorithm>

#include "motley/base/result.h"

namespace motley::collective {

SparseCache::SparseCache(std::size_t dimension, std::size_t capacity, std::int64_t steps)
    : dimension_(dimension), capacity_(capacity), steps_(steps) {
  MOTLEY_INVARIANT(capacity > 0, "a cache needs room for a row");
}

SparseCache::Missing SparseCache::take(std::span<const std::uint64_t> ids, std::int64_t after, std::span<float> rows) {
  MOTLEY_INVARIANT(rows.size() == ids.size() * dimension_, "{} ids came with room for {} values", ids.size(),
                   rows.size());
  ++batch_;
  Missing missing;
  RowIndex place;  // id -> index in missing.ids
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t hash = hash_id(ids[i]);
    const std::uint32_t slot = index_.find(ids[i], hash);
    if (slot != RowIndex::kNone && entries_[slot].after >= after - steps_) {
      Entry& entry = entries_[slot];
      if (entry.batch != batch_) {
        entry.batch = batch_;
        entry.frequency = std::min<std::uint8_t>(entry.frequency + 1, kMostFrequency);
        ++missing.found;
      }
      std::copy_n(values(slot), dimension_, rows.data() + i * dimension_);
      continue;
    }
    std::uint32_t at = place.find(ids[i], hash);
    if (at == RowIndex::kNone) {
      at = static_cast<std::uint32_t>(missing.ids.size());
      place.insert(ids[i], hash, at);
      missing.ids.push_back(ids[i]);
    }
    missing.positions.push_back(static_cast<std::uint32_t>(i));
    missing.answers.push_back(at);
  }
  return missing;
}

void SparseCache::put(const Missing& missing, std::span<const float> answers, std::int64_t after,
                      std::span<float> rows) {
  const auto answer = [&](std::size_t index) { return answers.data() + index * dimension_; };
  for (std::size_t i = 0; i < missing.positions.size(); ++i) {
    std::copy_n(answer(missing.answers[i]), dimension_, rows.data() + missing.positions[i] * dimension_);
  }
  for (std::size_t w = 0; w < missing.ids.size(); ++w) {
    const std::uint64_t hash = hash_id(missing.ids[w]);
    std::uint32_t slot = index_.find(missing.ids[w], hash);
    if (slot == RowIndex::kNone) {
      slot = take_slot();
      index_.insert(missing.ids[w], hash, slot);
      entries_[slot] = {.id = missing.ids[w], .after = after};
    } else if (entries_[slot].after > after) {  // a later answer was here first
      continue;
    }
    entries_[slot].after = after;
    std::copy_n(answer(w), dimension_, values(slot));
  }
}

std::uint32_t SparseCache::take_slot() {
  if (entries_.size() < capacity_) {
    entries_.emplace_back();
    values_.resize(entries_.size() * dimension_);
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

}  // namespace motley::collective
