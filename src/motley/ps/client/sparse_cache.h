// A worker's cache of hot rows in its memory: a row that was pulled may be used again until it is some steps old
// (cache_index.h), so that fewer are asked for. It only remembers; who asks for what it lacks, and when, is the
// caller's, so that answers may be under way while other batches are looked up. Not thread-safe: one for each worker.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "motley/base/result.h"
#include "motley/ps/client/cache_index.h"

namespace motley::ps {

class SparseCache {
 public:
  SparseCache(std::size_t dimension, std::size_t capacity, std::int64_t steps)
      : dimension_(dimension), index_(capacity, steps) {}

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
    index_.begin_batch();
    Missing missing;
    RowIndex place;  // id -> index in missing.ids
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (const auto [slot, is_first] = index_.find(ids[i], after); slot != CacheIndex::kNone) {
        if (is_first) ++missing.found;
        std::copy_n(values(slot), dimension_, rows.data() + i * dimension_);
        continue;
      }
      const std::uint64_t hash = hash_id(ids[i]);
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
      const std::uint32_t slot = index_.put(missing.ids[w], after);
      if (slot == CacheIndex::kNone) continue;
      values_.resize(index_.slots() * dimension_);
      std::copy_n(answer(w), dimension_, values(slot));
    }
  }

 private:
  float* values(std::uint32_t slot) { return values_.data() + slot * dimension_; }

  const std::size_t dimension_;
  CacheIndex index_;
  std::vector<float> values_;
};

}  // namespace motley::ps
