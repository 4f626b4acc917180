// The ledger of samples: which samples of which epoch a step uses, so that every sample of an epoch is used exactly
// once along the committed steps, whoever works and however the work is shared.
//
// An epoch is one seeded permutation of the dataset. A step takes the next window of it; the window's positions are cut
// among the workers in rank order (rank_range), or into shards that workers claim by a counter (PullPlan). The state is
// four numbers and knows nothing of workers, so that any number of them resumes from it. Everything here is pure: no
// clock, no threads, no input or output.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::data {

// Positions [begin, end) of an epoch's permutation.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

struct LedgerState {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint32_t cursor = 0;  // positions before it are committed
  std::uint32_t size = 0;    // of the dataset, in samples
  bool operator==(const LedgerState&) const = default;
};

class Ledger {
 public:
  // From a fresh state (epoch 0, cursor 0) or a saved one. Refuses an empty dataset and a cursor outside the epoch.
  static Result<Ledger> open(const LedgerState& state);

  const LedgerState& state() const { return state_; }

  // The window of the next step: `batch` positions from the cursor, fewer at the end of the epoch, never none. batch >
  // 0.
  Range next(std::uint32_t batch) const;

  // For jobs that drop short last windows: goes on to the next epoch when fewer than `batch` positions are left.
  // Returns whether it did; the samples left out are then unused in that epoch. Refuses a batch above the dataset.
  Result<bool> skip_short_window(std::uint32_t batch);

  // The samples at these positions of the current epoch, in order. Valid until the next commit.
  std::span<const std::uint32_t> samples(Range positions) const;

  // The step that used `window` is done on all workers: moves the cursor, and to the next epoch at the end. `window`
  // must be what next() gave; anything else is a step that was lost or done twice, and is refused.
  Status commit(Range window);

 private:
  explicit Ledger(const LedgerState& state);
  void start_epoch();

  LedgerState state_;
  std::vector<std::uint32_t> order_;
};

// Rank's part of a window that is cut in rank order into shares; the shares add up to the window.
Range rank_range(Range window, std::span<const std::uint32_t> shares, int rank);

// A window cut into shards of sizes that differ by at most one, for workers that claim shard 0, 1, 2, ... by a shared
// counter until it passes the last one.
class PullPlan {
 public:
  // Between 1 and window.size() shards.
  PullPlan(Range window, std::uint32_t shards);
  std::uint32_t shards() const { return shards_; }
  Range shard(std::uint32_t index) const;

 private:
  Range window_;
  std::uint32_t shards_;
};

// The audit: how often each sample was really loaded for a committed step of the current epoch. Each worker counts what
// it loads; the sum over workers is compared with what the ledger promises. Saved with each checkpoint and restored
// with it, so that steps which a crash rolled back do not count. Counts stop at 255.
class UseCounts {
 public:
  UseCounts(std::uint32_t size, std::uint64_t epoch) : epoch_(epoch), counts_(size, 0) {}
  // Counts that were added up elsewhere, one a sample.
  UseCounts(std::uint64_t epoch, std::vector<std::uint8_t> counts) : epoch_(epoch), counts_(std::move(counts)) {}

  std::uint64_t epoch() const { return epoch_; }
  std::span<const std::uint8_t> counts() const { return counts_; }

  void record(std::span<const std::uint32_t> samples);
  // Adds another worker's counts of the same epoch and dataset.
  Status merge(const UseCounts& other);

  // Samples lost or duplicated along the committed positions of `ledger`'s epoch (expected: once for those before
  // the cursor, never for the rest). When the ledger stands at the start of the next epoch, the whole epoch of these
  // counts is expected. Refuses counts of any other epoch.
  Result<std::uint32_t> not_used_exactly_once(const LedgerState& ledger) const;

  // Starts counting another epoch.
  void start(std::uint64_t epoch);

  // Compressed, with a checksum; parse refuses anything that serialise did not write.
  std::string serialise() const;
  static Result<UseCounts> parse(std::string_view bytes);

 private:
  std::uint64_t epoch_;
  std::vector<std::uint8_t> counts_;
};

}  // namespace motley::data
