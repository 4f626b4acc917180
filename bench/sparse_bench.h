// The rows of the bench `ps` about sparse tables: how fast they are in memory, and how much of RocksDB's own speed is
// left where they are larger than memory.
#pragma once

#include "bench/bench.h"

namespace motley::bench {

Result<std::vector<BenchRow>> sparse_rows(const BenchOptions& options);

}  // namespace motley::bench
