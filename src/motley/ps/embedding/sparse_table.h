// A sparse table: rows of weights by 64-bit id, pulled and pushed in batches, with an optimizer's state for each row;
// hot rows in memory within a budget, the others in a cold store; saved without stopping, and restored onto any number
// of shards.
//
// A table is one shard. Which ids are a shard's is the caller's choice (find_shard is the usual one); a row depends
// on its id and its gradients only. Rows exist once they were pushed: until then a pull gives what the initializer
// makes of seed and id.
//
// All calls may come from any thread. The table is cut into partitions by hash of the id, each behind a lock of its own
// that is held for memory accesses only; a batch goes to each partition once, to free ones first. Rows are read from
// the cold store outside of the locks, all of a batch at once. A push first brings its rows into memory and holds them
// there, which may fail, then applies all gradients, which cannot: so it is applied whole or not at all, and a
// checkpoint falls between pushes, never into one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/ps/embedding/cold_store.h"
#include "motley/ps/embedding/row_optimizer.h"
#include "motley/ps/embedding/row_partition.h"
#include "motley/ps/embedding/sparse_checkpoint.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::ps {

// `memory_bytes` is what rows in memory and their index may take. Rows of running pushes may exceed it for their time,
// and the cold store's own buffers are not in it. With a cold store it decides what is hot, without one it is a quota.
struct SparseTableSpec : SparseTableOptions {
  std::filesystem::path cold_folder;  // of the cold store in RocksDB; empty is none
};

struct CheckpointOptions {
  int keep = 2;                          // how many steps stay restorable
  std::function<void()> at_moment = {};  // called once the moment has passed whose rows are written
};

struct CheckpointReport {
  bool full = false;
  std::uint64_t rows = 0;  // written; a row may be among them in an older state too
  std::uint64_t bytes = 0;
};

struct SparseStatistics {
  std::uint64_t rows = 0;      // that were pushed
  std::uint64_t hot_rows = 0;  // in memory
  std::uint64_t prefetches_dropped = 0;
  RowCounters counters;
};

class SparseTable {
 public:
  // `cold` instead of RocksDB in the spec's folder. kInvalidInput names the field of the spec.
  static Result<std::unique_ptr<SparseTable>> create(const SparseTableSpec& spec,
                                                     std::unique_ptr<ColdStore> cold = nullptr);

  // A table as the checkpoints of `step` in the folders give it, a folder for each shard that wrote them, with those of
  // their rows that `owns` accepts. kCorrupt where a file is damaged.
  static Result<std::unique_ptr<SparseTable>> restore(const SparseTableSpec& spec,
                                                      const std::vector<std::filesystem::path>& folders,
                                                      std::int64_t step, const std::function<bool(std::uint64_t)>& owns,
                                                      std::unique_ptr<ColdStore> cold = nullptr);
  ~SparseTable();

  static RowShape make_shape(const SparseTableSpec& spec);

  // Writes the weights of ids[i] to rows[i * dimension, (i + 1) * dimension). Ids may repeat.
  Status pull(std::span<const std::uint64_t> ids, std::span<float> rows);
  // Gradients as rows above; those of one id are summed in their order, and its optimizer runs once. On an error
  // nothing of the push was applied; it is kRefused where a quota would be exceeded.
  Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients);

  // Brings the ids' rows into memory in the background, where they stay until they are pulled (or, if nobody comes, for
  // some revolutions of the hand). Does nothing without a cold store; drops the request when many wait.
  void prefetch(std::span<const std::uint64_t> ids);
  // Waits until all prefetches that were asked for are done.
  Status drain_prefetches(const Deadline& deadline);

  void set_learning_rate(float rate) { learning_rate_ = rate; }

  // Writes the table as it is at some moment of this call into `folder`, which is this table's and this shard's alone,
  // while pulls and pushes go on: all rows, or those that changed since the last checkpoint there. On a failure earlier
  // ones are intact. One at a time; a second call waits.
  Result<CheckpointReport> checkpoint(const std::filesystem::path& folder, std::int64_t step,
                                      const CheckpointOptions& options = {});

  SparseStatistics statistics();
  const SparseTableSpec& spec() const { return spec_; }

 private:
  // An id of a batch whose row was not in memory when its partition's stamp was taken.
  struct Missing {
    std::uint64_t id = 0;
    std::uint64_t hash = 0;
    std::uint32_t item = 0;  // what the caller of fetch() knows it by
    std::uint64_t stamp = 0;
  };
  // Rows read from the cold store (or initialized), before they have a place.
  struct Fetched {
    std::vector<std::uint64_t> ids;
    std::vector<std::uint8_t> found;
    std::vector<std::byte> records;
  };

  static constexpr int kPartitionBits = 4;
  static constexpr std::size_t kPartitions = std::size_t{1} << kPartitionBits;
  static constexpr std::size_t kPrefetchesWaiting = 16;

  SparseTable(SparseTableSpec spec, std::unique_ptr<ColdStore> cold);

  RowPartition& find_partition(std::uint64_t hash) { return *partitions_[hash >> (64 - kPartitionBits)]; }
  template <class Work>
  Status each_partition(RowBatch& batch, Work work);
  Status read_cold(const std::vector<Missing>& missing, Fetched& fetched);
  void initialize_record(std::uint64_t id, std::byte* record) const;
  template <class Use>
  Status fetch(std::vector<Missing>& missing, bool must_stay, Use use);
  template <class Change>
  Status update(RowBatch& batch, Change change);
  Status hold(RowBatch& batch);
  Status pin(RowPartition& partition, std::uint32_t slot);
  void unpin(RowPartition& partition, std::uint32_t slot);
  Status put(std::span<const std::uint64_t> ids, std::span<const float> floats);
  void prefetch_in_background();
  Status prefetch_now(std::span<const std::uint64_t> ids);
  Result<RowFile> save_hot(const std::filesystem::path& folder, const std::string& stem);
  Result<RowFile> save_cold(const std::filesystem::path& folder, const std::string& stem, std::uint32_t since,
                            const ColdSnapshot& cold);
  Result<std::vector<RowFile>> save_rows(const std::filesystem::path& folder, const std::string& stem,
                                         std::uint32_t since, const ColdSnapshot& cold);

  const SparseTableSpec spec_;
  const RowShape shape_;
  const std::unique_ptr<ColdStore> cold_;
  std::uint64_t max_rows_ = 0;  // the tightest quota
  std::string max_rows_reason_;
  std::size_t max_rows_at_once_ = 0;  // in a push, so that they can all be in memory
  std::vector<std::unique_ptr<RowPartition>> partitions_;
  std::atomic<std::uint64_t> rows_ = 0;
  std::atomic<float> learning_rate_;

  // Pushes apply their gradients within applying_ (shared); a checkpoint's moment is between them. Whoever wants either
  // passes the turnstile, so that a stream of pushes cannot keep a checkpoint out.
  std::mutex turnstile_;
  std::shared_mutex applying_;
  std::uint32_t epoch_ = 1;  // grows with each checkpoint; changed and read within applying_

  std::mutex checkpointing_;
  std::filesystem::path chain_folder_;
  std::vector<RowFile> chain_;
  std::uint32_t chain_cut_ = 0;      // the epoch that the chain's last files cover
  std::uint64_t chain_changes_ = 0;  // rows in the chain after its full part

  std::mutex prefetch_mutex_;
  std::condition_variable prefetch_changed_;
  std::deque<std::vector<std::uint64_t>> prefetches_;
  bool prefetching_ = false;
  bool stopping_ = false;
  std::uint64_t prefetches_dropped_ = 0;
  std::thread prefetcher_;
};

}  // namespace motley::ps
