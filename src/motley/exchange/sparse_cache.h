// A worker's cache of hot rows before a table: a row that was pulled may be used again until it is `staleness` steps
// old, and gradients go straight through. Not thread-safe: one for each worker.
//
// The bound is the one of stale synchronous parallel: a pull in step t returns a state that has all that the source had
// when some pull of this worker in step t - staleness or later reached it. A worker's own gradients are no exception:
// rows that it pushed are used from the cache until they are too old. With a staleness of 0 rows are shared within a
// step only.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/exchange/row_index.h"
#include "motley/exchange/row_source.h"

namespace motley::exchange {

class SparseCache final : public RowSource {
 public:
  // Keeps at most `capacity` rows (1 or more), the often used by CLOCK with frequencies, as the table does.
  SparseCache(RowSource& source, std::size_t dimension, std::size_t capacity, std::int64_t staleness);

  // The worker's clock. Steps never go back, except with clear().
  void begin_step(std::int64_t step) { step_ = step; }
  // Forgets all rows, as when the source was rolled back.
  void clear();

  Status pull(std::span<const std::uint64_t> ids, std::span<float> rows) override;
  Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients) override;

  std::uint64_t hits() const { return hits_; }      // ids answered from here
  std::uint64_t misses() const { return misses_; }  // ids asked of the source

 private:
  static constexpr std::uint8_t kMostFrequency = 15;

  struct Entry {
    std::uint64_t id = 0;
    std::int64_t step = 0;  // when it was pulled
    std::uint8_t frequency = 0;
  };

  float* values(std::uint32_t slot) { return values_.data() + slot * dimension_; }
  std::uint32_t take_slot();

  RowSource& source_;
  const std::size_t dimension_;
  const std::size_t capacity_;
  const std::int64_t staleness_;
  std::int64_t step_ = 0;
  RowIndex index_;
  std::vector<Entry> entries_;
  std::vector<float> values_;
  std::uint32_t hand_ = 0;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace motley::exchange
