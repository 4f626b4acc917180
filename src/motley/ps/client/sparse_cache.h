// A worker's cache of hot rows: a row that was pulled may be used again until it is some steps old, so that fewer are
// asked for. It only remembers; who asks for what it lacks, and when, is the caller's, so that answers may be under way
// while other batches are looked up. Not thread-safe: one for each worker.
//
// The bound is the one of stale synchronous parallel: a batch that wants rows as they are after step t gets each as it
// was after step t - steps or later. A worker's own gradients are no exception: rows that it pushed are used from the
// cache until they are too old.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/protocol/row_index.h"

namespace motley::ps {

class SparseCache {
 public:
  // Keeps at most `capacity` rows (1 or more), the often used by CLOCK with frequencies, as the table does.
  SparseCache(std::size_t dimension, std::size_t capacity, std::int64_t steps)
      : dimension_(dimension), capacity_(capacity), steps_(steps) {
    MOTLEY_INVARIANT(capacity > 0, "a cache needs room for a row");
  }

  // What a batch has to be asked for.
  struct Missing {
    std::vector<std::uint64_t> ids;        // each once, in the order of the batch
    std::vector<std::uint32_t> positions;  // of the batch that are not answered
    std::vector<std::uint32_t> answers;    // for each of these positions the index in `ids`
    std::size_t found = 0;                 // different ids that are not asked for
  };

  // A batch that wants rows as they are after step `after`: those that are here go to
  // rows[i * dimension, (i + 1) * dimension) for each position i.
  Missing take(std::span<const std::uint64_t> ids, std::int64_t after, std::span<float> rows) {
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
          entry.frequency = std::min<std::uint8_t>(entry.frequency + 1, kMaxFrequency);
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

  // The rows of missing.ids as they are after step `after`: they are kept, and go to their positions in `rows`.
  void put(const Missing& missing, std::span<const float> answers, std::int64_t after, std::span<float> rows) {
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

 private:
  static constexpr std::uint8_t kMaxFrequency = 15;

  struct Entry {
    std::uint64_t id = 0;
    std::int64_t after = 0;   // the step after which the row was like this
    std::uint64_t batch = 0;  // the last one that it was found for
    std::uint8_t frequency = 0;
  };

  float* values(std::uint32_t slot) { return values_.data() + slot * dimension_; }

  std::uint32_t take_slot() {
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

  const std::size_t dimension_;
  const std::size_t capacity_;
  const std::int64_t steps_;
  std::uint64_t batch_ = 0;
  RowIndex index_;
  std::vector<Entry> entries_;
  std::vector<float> values_;
  std::uint32_t hand_ = 0;
};

}  // namespace motley::ps
