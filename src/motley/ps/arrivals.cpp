// Keeping times, a round of them.
#include "motley/ps/arrivals.h"

#include <algorithm>
#include <utility>

namespace motley::ps {

Arrivals::Arrivals(std::vector<Item> round, std::size_t ranks, ShareMetrics& metrics)
    : metrics_(metrics), round_(std::move(round)), first_(round_.size()), come_(ranks) {
  std::size_t rows = 0;
  for (const Item& item : round_) judged_.push_back(item.judged ? rows++ : kNotJudged);
  times_.resize(rows * ranks);
}

void Arrivals::came(std::size_t rank, std::uint64_t end, double time) {
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

std::uint64_t Arrivals::end_of_bucket(std::uint64_t announcement) const {
  std::uint64_t end = announcement + 1;
  while (end % round_.size() != 0 && round_[end % round_.size()].segment) ++end;
  return end;
}

void Arrivals::begun(std::uint64_t announcement) {
  const std::size_t row = judged_[announcement % round_.size()];
  if (row != kNotJudged) judge_last(metrics_, std::span(times_).subspan(row * come_.size(), come_.size()));
}

void Arrivals::updated(std::uint64_t segment, double time) {
  count_update(metrics_, first_[segment % round_.size()], time);
  metrics_.waiting.set(metrics_.waiting.get() - 1);
}

void count_update(ShareMetrics& metrics, double first, double now) {
  metrics.latency.observe(std::max(now - first, 0.0));
  metrics.segments.add(1);
}

void judge_last(ShareMetrics& metrics, std::span<const double> times) {
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

}  // namespace motley::ps
