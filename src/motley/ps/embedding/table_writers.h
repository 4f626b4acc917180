// Writes a checkpoint of all tables of a job, a thread for each, so that all are written as they were at one moment.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "motley/ps/embedding/sparse_table.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::ps {

// One thread calls all.
class TableWriters {
 public:
  using Done = std::function<void(Result<SparseSaved>)>;
  ~TableWriters() { join(); }

  // Each table into its folder, once the checkpoint before is written. Returns when the moment has passed that is
  // written; `done` is called by the last thread. The tables must live until then.
  void write(std::span<const std::unique_ptr<SparseTable>> tables, std::vector<std::filesystem::path> folders,
             std::int64_t step, Done done);
  void join();

 private:
  std::vector<std::thread> threads_;
  std::vector<Result<CheckpointReport>> reports_;  // by table
  std::atomic<std::size_t> unfinished_ = 0;
};

}  // namespace motley::ps
