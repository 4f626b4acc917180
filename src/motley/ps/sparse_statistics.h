// What a sparse table counts.
#pragma once

#include <cstdint>

namespace motley::ps {

struct RowCounters {
  std::uint64_t hits = 0;           // ids that were found in memory
  std::uint64_t misses = 0;         // ids that were not
  std::uint64_t evictions = 0;      // rows that left memory
  std::uint64_t cold_writes = 0;    // rows written to the cold tier
  std::uint64_t prefetched = 0;     // rows kept for a use that was announced
  std::uint64_t prefetch_hits = 0;  // of these, used while still in memory
};

struct SparseStatistics {
  std::uint64_t rows = 0;      // that were pushed
  std::uint64_t hot_rows = 0;  // in memory
  std::uint64_t prefetches_dropped = 0;
  RowCounters counters;
};

}  // namespace motley::ps
