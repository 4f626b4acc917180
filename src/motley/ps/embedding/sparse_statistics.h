// What a sparse table counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// The sparse tables of a job, at one moment.
struct SparseJobMetrics {
  struct Table {
    std::string name;
    SparseStatistics statistics;
  };

  std::string tenant;
  std::string job;
  std::int64_t step = 0;           // whose gradients are in the tables; 0 in asynchronous mode
  std::size_t waiting_bytes = 0;   // of gradients, for ranks that have not finished their step
  std::vector<int> missing_ranks;  // that the others wait for
  std::vector<Table> tables;       // once they are open
};

}  // namespace motley::ps
