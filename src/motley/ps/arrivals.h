// When the ranks' gradients came to a core, for the metrics that depend on it: a segment's latency, what waits, and who
// was the last. A round is always the same items, so an item is known by its number, counted over all rounds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "motley/ps/metrics.h"

namespace motley::ps {

// A segment was updated that first came from a rank then.
void count_update(ShareMetrics& metrics, double first, double now);
// A bucket has come from all ranks at these times: who was the last, and how long it alone was missing.
void judge_last(ShareMetrics& metrics, std::span<const double> times);

class Arrivals {
 public:
  // The announcement of a bucket, or a segment of it. Of all cores that have segments of a bucket one judges who was
  // the last.
  struct Item {
    bool segment = false;
    bool judged = false;  // of an announcement
  };

  Arrivals(std::vector<Item> round, std::size_t ranks, ShareMetrics& metrics);

  // Items that have come from the rank.
  std::uint64_t of(std::size_t rank) const { return come_[rank]; }
  // All items before `end` have come from the rank, the new ones at this time.
  void came(std::size_t rank, std::uint64_t end, double time);
  // The first item after this announcement's bucket.
  std::uint64_t end_of_bucket(std::uint64_t announcement) const;
  void begun(std::uint64_t announcement);
  void updated(std::uint64_t segment, double time);

 private:
  static constexpr std::size_t kNotJudged = SIZE_MAX;

  ShareMetrics& metrics_;
  std::vector<Item> round_;
  std::vector<double> first_;        // arrival, by item
  std::vector<std::size_t> judged_;  // by item: which row of `times_`
  std::vector<double> times_;        // arrivals of judged announcements, by row and rank
  std::vector<std::uint64_t> come_;  // by rank
  std::uint64_t furthest_ = 0;       // items that have come from any rank
  std::uint64_t ready_ = 0;          // items that have come from all ranks
};

}  // namespace motley::ps
