#include "motley/exchange/sparse_cache.h"

#include <algorithm>

namespace motley::exchange {

SparseCache::SparseCache(RowSource& source, std::size_t dimension, std::size_t capacity, std::int64_t staleness)
    : source_(source), dimension_(dimension), capacity_(capacity), staleness_(staleness) {
  MOTLEY_INVARIANT(capacity > 0, "a cache needs room for a row");
}

void SparseCache::clear() {
  index_ = {};
  entries_.clear();
  values_.clear();
  hand_ = 0;
}

Status SparseCache::pull(std::span<const std::uint64_t> ids, std::span<float> rows) {
  if (rows.size() != ids.size() * dimension_) {
    return fail(ErrorCode::kInvalidInput, "{} ids came with room for {} values; accepted: {} values an id", ids.size(),
                rows.size(), dimension_);
  }
  const auto out = [&](std::size_t position) { return rows.data() + position * dimension_; };
  std::vector<std::uint64_t> wanted;     // distinct
  std::vector<std::uint32_t> answer_of;  // position in the batch, index in wanted
  std::vector<std::uint32_t> positions;
  RowIndex place;  // id -> index in wanted
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::uint64_t hash = hash_id(ids[i]);
    const std::uint32_t slot = index_.find(ids[i], hash);
    if (slot != RowIndex::kNone && step_ - entries_[slot].step <= staleness_) {
      entries_[slot].frequency = std::min<std::uint8_t>(entries_[slot].frequency + 1, kMostFrequency);
      std::copy_n(values(slot), dimension_, out(i));
      continue;
    }
    std::uint32_t at = place.find(ids[i], hash);
    if (at == RowIndex::kNone) {
      at = static_cast<std::uint32_t>(wanted.size());
      place.insert(ids[i], hash, at);
      wanted.push_back(ids[i]);
    }
    answer_of.push_back(at);
    positions.push_back(static_cast<std::uint32_t>(i));
  }
  hits_ += ids.size() - positions.size();
  misses_ += positions.size();
  if (wanted.empty()) {
    return {};
  }
  std::vector<float> answers(wanted.size() * dimension_);
  MOTLEY_TRY(source_.pull(wanted, answers));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    std::copy_n(answers.data() + answer_of[i] * dimension_, dimension_, out(positions[i]));
  }
  for (std::size_t w = 0; w < wanted.size(); ++w) {
    const std::uint64_t hash = hash_id(wanted[w]);
    std::uint32_t slot = index_.find(wanted[w], hash);
    if (slot == RowIndex::kNone) {
      slot = take_slot();
      index_.insert(wanted[w], hash, slot);
      entries_[slot] = {wanted[w], step_, 0};
    }
    entries_[slot].step = step_;
    std::copy_n(answers.data() + w * dimension_, dimension_, values(slot));
  }
  return {};
}

Status SparseCache::push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
  return source_.push(ids, gradients);
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

}  // namespace motley::exchange
