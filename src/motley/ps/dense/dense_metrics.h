// What cores count of the dense jobs that they work on. Every value has one owner that adds to it without a lock or a
// read-modify-write; whoever scrapes reads it from another thread a moment later.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace motley::ps {

// A number that one thread writes and any may read.
template <class T>
class Cell {
 public:
  void set(T value) { value_.store(value, std::memory_order_relaxed); }
  void add(T more) { set(get() + more); }
  T get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{};
};
using Count = Cell<std::uint64_t>;
using Seconds = Cell<double>;

class Histogram {
 public:
  // Upper ends of the buckets, in seconds; one more bucket has no end.
  static constexpr std::array kBounds = {1e-5,   2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2,
                                         2.5e-2, 5e-2,   0.1,  0.25, 0.5,    1.0,  2.5,  5.0,    10.0};

  void observe(double seconds) {
    counts_[static_cast<std::size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())].add(1);
    sum_.add(seconds);
  }
  std::uint64_t count(std::size_t bucket) const { return counts_[bucket].get(); }
  double sum() const { return sum_.get(); }

 private:
  std::array<Count, kBounds.size() + 1> counts_;
  Seconds sum_;
};

// One job on one core, which owns the values.
struct alignas(64) ShardMetrics {
  struct Rank {
    Count last;      // buckets for which it was the last to come
    Seconds waited;  // for which it alone was missing then
    Count taken;     // of an asynchronous job: items that have had their effect
  };

  Count bytes_in;          // over channels
  Count bytes_out;         // over channels
  Count bytes_aggregated;  // of gradients, as float32
  Count segments;          // updated
  Count waiting;           // segments that all ranks have brought and that the core has not got to
  Count held;              // of an asynchronous job: answers that wait for other ranks
  Count ahead;             // of an asynchronous job: rounds that the furthest rank is ahead of the last
  Count step;              // that is under way or waited for
  Count bucket;            // the next one
  Histogram latency;       // of a segment: from its first rank's arrival until it is updated
  std::vector<Rank> ranks;
};

struct JobMetrics {
  JobMetrics(int ranks, int cores) : shards(static_cast<std::size_t>(cores)), missing(static_cast<std::size_t>(ranks)) {
    for (ShardMetrics& shard : shards) shard.ranks = std::vector<ShardMetrics::Rank>(missing.size());
  }

  // Set before it is registered.
  std::string tenant;
  std::string job;
  std::size_t bytes = 0;     // of memory
  double map_imbalance = 1;  // values of the busiest core over those of a mean one, as the map deals them out

  std::vector<ShardMetrics> shards;  // by core
  // Of the service's thread.
  Count waiting;                    // segments that cores claim, and none has
  Seconds stalled;                  // for which nothing has moved although something waits
  std::vector<Cell<bool>> missing;  // by rank
};

struct alignas(64) ThreadMetrics {
  Seconds busy;  // written by the core
};

}  // namespace motley::ps
