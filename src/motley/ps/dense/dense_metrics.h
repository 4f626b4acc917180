// What cores count of the dense jobs that they work on. Every value has one owner that adds to it without a lock or a
// read-modify-write; whoever scrapes reads it from another thread a moment later.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
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

// A segment was updated that first came from a rank then.
inline void count_update(ShardMetrics& metrics, double first, double now) {
  metrics.latency.observe(std::max(now - first, 0.0));
  metrics.segments.add(1);
}

// A bucket has come from all ranks at these times: who was the last, and how long it alone was missing.
inline void judge_last(ShardMetrics& metrics, std::span<const double> times) {
  if (times.size() < 2) return;
  std::size_t last = 0;
  double before = -1;  // the time of the one before the last
  for (std::size_t rank = 1; rank < times.size(); ++rank) {
    if (times[rank] > times[last]) {
      before = std::max(before, times[last]);
      last = rank;
    } else {
      before = std::max(before, times[rank]);
    }
  }
  metrics.ranks[last].last.add(1);
  metrics.ranks[last].waited.add(times[last] - before);
}

// When the ranks' gradients came to a core, for the metrics that depend on it: a segment's latency, what waits, and who
// was the last. A round is always the same items, so an item is known by its number, counted over all rounds.
class Arrivals {
 public:
  // The announcement of a bucket, or a segment of it. Of all cores that have segments of a bucket one judges who was
  // the last.
  struct Item {
    bool segment = false;
    bool judged = false;  // of an announcement
  };

  Arrivals(std::vector<Item> round, std::size_t ranks, ShardMetrics& metrics)
      : metrics_(metrics), round_(std::move(round)), first_(round_.size()), come_(ranks) {
    std::size_t rows = 0;
    for (const Item& item : round_) judged_.push_back(item.judged ? rows++ : kNotJudged);
    times_.resize(rows * ranks);
  }

  // Items that have come from the rank.
  std::uint64_t of(std::size_t rank) const { return come_[rank]; }
  // All items before `end` have come from the rank, the new ones at this time.
  void came(std::size_t rank, std::uint64_t end, double time) {
    for (std::uint64_t& item = come_[rank]; item < end; ++item) {
      const std::size_t place = item % round_.size();
      if (item >= furthest_) {
        furthest_ = item + 1;
        first_[place] = time;
      }
      first_[place] = std::min(first_[place], time);
      if (judged_[place] != kNotJudged) times_[judged_[place] * come_.size() + rank] = time;
    }
    for (const std::uint64_t from_all = *std::ranges::min_element(come_); ready_ < from_all; ++ready_) {
      if (round_[ready_ % round_.size()].segment) metrics_.waiting.add(1);
    }
  }

  // The first item after this announcement's bucket.
  std::uint64_t end_of_bucket(std::uint64_t announcement) const {
    std::uint64_t end = announcement + 1;
    while (end % round_.size() != 0 && round_[end % round_.size()].segment) ++end;
    return end;
  }

  void begun(std::uint64_t announcement) {
    const std::size_t row = judged_[announcement % round_.size()];
    if (row != kNotJudged) judge_last(metrics_, std::span(times_).subspan(row * come_.size(), come_.size()));
  }

  void updated(std::uint64_t segment, double time) {
    count_update(metrics_, first_[segment % round_.size()], time);
    metrics_.waiting.set(metrics_.waiting.get() - 1);
  }

 private:
  static constexpr std::size_t kNotJudged = SIZE_MAX;

  ShardMetrics& metrics_;
  std::vector<Item> round_;
  std::vector<double> first_;        // arrival, by item
  std::vector<std::size_t> judged_;  // by item: which row of `times_`
  std::vector<double> times_;        // arrivals of judged announcements, by row and rank
  std::vector<std::uint64_t> come_;  // by rank
  std::uint64_t furthest_ = 0;       // items that have come from any rank
  std::uint64_t ready_ = 0;          // items that have come from all ranks
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
