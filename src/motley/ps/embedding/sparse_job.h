// The sparse tables of one job on one server: which gradients of which step have come from whom, when they are applied,
// and how the tables are written down and opened again.
//
// In synchronous mode a rank's pushes are collected until all ranks have finished the step. Then those of each table
// are put together, rank after rank and each times its weight over the step's, and pushed into the table as one: so
// every row is stepped once, and the sums do not depend on who came first. A rank that ends before it finished the step
// leaves nothing behind.
//
// All calls may come from any thread; a rank's own come one after the other. The mutex guards what is collected; tables
// have their own locks, and are not touched under it.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/net/wait_set.h"
#include "motley/ps/embedding/sparse_table.h"
#include "motley/ps/protocol/sparse_protocol.h"
#include "motley/ps/tenants/tenants.h"

namespace motley::ps {

struct SparseLimits {
  std::filesystem::path folder;  // of cold tiers and checkpoints; empty: neither
  // For one job's rows in memory and the gradients and pulls that wait, and for those of all jobs of its tenant; 0: no
  // bound.
  std::size_t quota_bytes = 0;
  std::size_t tenant_quota_bytes = 0;
  TenantUse* use = nullptr;  // which counts the threads of the tenant's tables
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
  std::size_t waiting_bytes = 0;   // of gradients and pulls, for ranks that have not finished their step
  std::vector<int> missing_ranks;  // that the others wait for
  std::vector<Table> tables;       // once they are open
};

class SparseJob {
 public:
  // `before` is the end of an earlier job of this name, whose files must be closed when these tables are opened.
  SparseJob(const net::Identity& identity, SparseLimits limits, MemoryQuota& memory, std::shared_future<void> before);
  ~SparseJob();
  std::shared_future<void> end() const { return end_; }

  const std::string& name() const { return name_; }
  const std::vector<SparseTableOptions>& tables() const { return open_.tables; }  // once opened

  // A rank has come; what its thread waits in is woken when something has changed for it, until it goes.
  void enter(int rank, const net::WaitSet& waits);
  void go(int rank) {
    const std::lock_guard lock(mutex_);
    ranks_.at(rank).waits = nullptr;
  }
  // Says that a rank goes in order, and finishes no further step.
  void leave(int rank);
  // Whether it has failed, or all who came have gone.
  bool over();

  // The last rank's call opens the tables.
  Status open(int rank, const SparseOpen& open);
  bool opened() const { return opened_; }
  // Whether the gradients of all steps up to this one are in the tables.
  bool reached(std::int64_t step) const { return asynchronous_ || applied_ >= step; }
  Status pull(std::uint32_t table, std::span<const std::uint64_t> ids, std::span<float> rows) {
    return tables_[table]->pull(ids, rows);
  }
  // Brings rows into memory that will be pulled.
  void prefetch(std::uint32_t table, std::span<const std::uint64_t> ids) { tables_[table]->prefetch(ids); }
  // Memory of a pull that waits for a step to come, until the last copy of what it returns has gone. kRefused where
  // that is beyond a quota.
  Result<std::shared_ptr<void>> hold_pull(std::size_t bytes);
  Status push(int rank, const PushFrame& frame);
  Status finish(int rank, std::int64_t step, double weight);
  // Of rank 0, after its last finished step, which is reached. Returns once the moment has passed that is written;
  // saved() gives the result, once, when all is written.
  Status save(int rank, std::int64_t step);
  std::optional<std::pair<std::int64_t, Result<SparseSaved>>> saved();
  // Who has not come, or has not finished the step that the others wait for.
  std::vector<int> missing_ranks();

  SparseJobMetrics metrics();

  // Ends the job for all ranks; the first error counts.
  void fail_with(const Error& error);
  // Does so where `rank`, which has finished this step, waits for one that has left without.
  void fail_if_unreachable(int rank, std::int64_t step);
  std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  struct Push {
    double weight = 0;
    std::vector<std::uint64_t> ids;
    std::vector<float> gradients;

    std::size_t bytes() const { return ids.size() * sizeof(ids[0]) + gradients.size() * sizeof(gradients[0]); }
    // Its rows behind these, gradients times `share`.
    void append(const Push& other, float share) {
      ids.insert(ids.end(), other.ids.begin(), other.ids.end());
      for (const float gradient : other.gradients) gradients.push_back(share * gradient);
    }
  };
  struct Step {  // of a rank
    double weight = 0;
    std::vector<std::vector<Push>> pushes;  // by table
    std::size_t bytes = 0;
  };
  struct Rank {
    const net::WaitSet* waits = nullptr;  // while it is here
    bool open = false;
    bool left = false;
    std::int64_t finished = 0;
    std::deque<Step> steps;  // not applied yet; the last is not finished
  };

  // These three under the mutex. Memory of what waits is taken and let go.
  void notify_all();
  Status take(std::size_t bytes);
  void let_go(std::size_t bytes);
  Status open_tables();
  Result<std::unique_ptr<SparseTable>> open_table(const SparseTableOptions& options);
  // Below a job's folder, those of a table's shard.
  static std::filesystem::path make_folder_path(const std::filesystem::path& job, const SparseTableOptions& table,
                                                int shard, int shards);
  Status apply(std::vector<Step> steps);
  void join_writers();
  void end_save(std::int64_t step, Result<SparseSaved> saved);

  const std::string tenant_;
  const std::string job_;
  const std::string name_;  // "tenant/job"
  const SparseLimits limits_;
  MemoryQuota::Lease memory_;           // of tables and of what waits
  const std::filesystem::path folder_;  // of this job
  const std::shared_future<void> before_;
  std::promise<void> ended_;
  const std::shared_future<void> end_ = ended_.get_future().share();

  std::atomic<bool> opened_ = false;
  std::atomic<bool> asynchronous_ = false;
  std::atomic<std::int64_t> applied_ = 0;

  std::mutex mutex_;
  std::optional<Error> failure_;
  std::optional<SparseOpen> seen_;  // of the first rank
  std::map<int, Rank> ranks_;       // that have come
  std::size_t waiting_bytes_ = 0;   // of collected gradients, and of pulls
  bool applying_ = false;
  std::optional<std::pair<std::int64_t, Result<SparseSaved>>> saved_;

  // Written before opened_ is set.
  SparseOpen open_;
  std::size_t table_bytes_ = 0;
  std::vector<std::unique_ptr<SparseTable>> tables_;

  std::shared_ptr<void> threads_;     // that the tables may have, as they count
  std::vector<std::thread> writers_;  // of a checkpoint, by table
};

}  // namespace motley::ps
