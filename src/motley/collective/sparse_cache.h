// A worker's cache of hot rows: a row that was pulled may be used again until it is some steps old, so that fewer are
// asked for. It only remembers; who asks for what it lacks, and when, is the caller's, so that answers may be under way
// while other batches are looked up. Not thread-safe: one for each worker.
//
// The bound is the one of stale synchronous parallel: a batch that wants rows as they are after step t gets each as it
// was after step t - steps or later. A worker's own gradients are no exception: rows that it pushed are used from the
// cache until they are too old.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "motley/collective/row_index.h"

namespace motley::collective {

class SparseCache {
 public:
  // Keeps at most `capacity` rows (1 or more), the often used by CLOCK with frequencies, as the table does.
  SparseCache(std::size_t dimension, std::size_t capacity, std::int64_t steps);

  // What a batch has to be asked for.
  struct Missing {
    std::vector<std::uint64_t> ids;        // each once, in the order of the batch
    std::vector<std::uint32_t> positions;  // of the batch that are not answered
    std::vector<std::uint32_t> answers;    // for each of these positions the index in `ids`
    std::size_t found = 0;                 // different ids that are not asked for
  };

  // A batch that wants rows as they are after step `after`: those that are here go to
  // rows[i * dimension, (i + 1) * dimension) for each position i.
  Missing take(std::span<const std::uint64_t> ids, std::int64_t after, std::span<float> rows);
  // The rows of missing.ids as they are after step `after`: they are kept, and go to their positions in `rows`.
  void put(const Missing& missing, std::span<const float> answers, std::int64_t after, std::span<float> rows);

 private:
  static constexpr std::uint8_t kMostFrequency = 15;

  struct Entry {
    std::uint64_t id = 0;
    std::int64_t after = 0;   // the step after which the row was like this
    std::uint64_t batch = 0;  // the last one that it was found for
    std::uint8_t frequency = 0;
  };

  float* values(std::uint32_t slot) { return values_.data() + slot * dimension_; }
  std::uint32_t take_slot();

  const std::size_t dimension_;
  const std::size_t capacity_;
  const std::int64_t steps_;
  std::uint64_t batch_ = 0;
  RowIndex index_;
  std::vector<Entry> entries_;
  std::vector<float> values_;
  std::uint32_t hand_ = 0;
};

}  // namespace motley::collective
