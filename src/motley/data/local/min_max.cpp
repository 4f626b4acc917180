// The min-max split (see min_max.h). First the real-valued problem in closed form: every worker's share as a function
// of T is piecewise linear, so that T is found between two neighbouring corners. Rounding its shares down gives samples
// that any optimal split hands out as well; the few that are left go, one by one, to the worker that would finish
// first.
#include "motley/data/local/min_max.h"

#include <algorithm>
#include <cmath>

namespace motley::data {
namespace {

// Below a picosecond per sample a worker's time is flat; the floor keeps the slopes' inverses finite.
constexpr double kLeastPerSample = 1e-12;

// The worker's real-valued share if all end at T.
double share_at(double seconds, const WorkerCost& cost, const WorkerLimits& limits) {
  return std::clamp((seconds - cost.fixed) / cost.per_sample, static_cast<double>(limits.minimum),
                    static_cast<double>(limits.maximum));
}

// The T at which the real-valued shares add up to the batch.
double solve_continuous(std::span<const WorkerCost> costs, std::span<const WorkerLimits> limits, double batch) {
  std::vector<double> corners;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    corners.push_back(costs[i].fixed + costs[i].per_sample * limits[i].minimum);
    corners.push_back(costs[i].fixed + costs[i].per_sample * limits[i].maximum);
  }
  std::sort(corners.begin(), corners.end());
  const auto total_at = [&](double seconds) {
    double total = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      total += share_at(seconds, costs[i], limits[i]);
    }
    return total;
  };
  // The last corner at which not more than the batch is handed out.
  const auto above =
      std::partition_point(corners.begin(), corners.end(), [&](double corner) { return total_at(corner) <= batch; });
  if (above == corners.end()) {
    return corners.back();
  }
  const double from = above == corners.begin() ? corners.front() : *(above - 1);
  const double to = *above;
  // Between the two the active workers are those whose share grows: T = (B - rest + sum a/c) / sum 1/c.
  double rest = 0, slopes = 0, offsets = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const double begin = costs[i].fixed + costs[i].per_sample * limits[i].minimum;
    const double end = costs[i].fixed + costs[i].per_sample * limits[i].maximum;
    if (begin < to && end > from && end > begin) {
      slopes += 1 / costs[i].per_sample;
      offsets += costs[i].fixed / costs[i].per_sample;
    } else {
      rest += begin >= to ? limits[i].minimum : limits[i].maximum;
    }
  }
  return slopes > 0 ? std::clamp((batch - rest + offsets) / slopes, from, to) : from;
}

}  // namespace

double step_seconds(std::span<const WorkerCost> costs, std::span<const std::uint32_t> shares) {
  double seconds = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    seconds = std::max(seconds, costs[i].seconds(shares[i]));
  }
  return seconds;
}

Result<MinMaxSplit> solve_min_max(std::span<const WorkerCost> given, std::span<const WorkerLimits> given_limits,
                                  std::uint32_t batch) {
  const std::size_t workers = given.size();
  MOTLEY_INVARIANT(workers > 0 && given_limits.size() == workers, "{} workers with {} limits", workers,
                   given_limits.size());
  std::vector<WorkerCost> costs(given.begin(), given.end());
  std::vector<WorkerLimits> limits(given_limits.begin(), given_limits.end());
  std::uint64_t least = 0, most = 0;
  for (std::size_t i = 0; i < workers; ++i) {
    MOTLEY_INVARIANT(std::isfinite(costs[i].fixed) && std::isfinite(costs[i].per_sample) && costs[i].fixed >= 0 &&
                         costs[i].per_sample >= 0,
                     "worker {} has a cost of {} s + {} s per sample", i, costs[i].fixed, costs[i].per_sample);
    if (limits[i].minimum > limits[i].maximum) {
      return fail(ErrorCode::kInvalidInput, "worker {}: its minimum of {} samples is above its maximum of {}", i,
                  limits[i].minimum, limits[i].maximum);
    }
    costs[i].per_sample = std::max(costs[i].per_sample, kLeastPerSample);
    least += limits[i].minimum;
    most += limits[i].maximum;
    limits[i].maximum = std::min(limits[i].maximum, std::max(batch, limits[i].minimum));
  }
  if (batch < least) {
    return fail(
        ErrorCode::kInvalidInput,
        "a batch of {} samples is too small for {} workers whose minimums add up to {}: use a batch of at least "
        "{}, fewer workers or smaller minimums",
        batch, workers, least, least);
  }
  if (batch > most) {
    return fail(ErrorCode::kInvalidInput,
                "a batch of {} samples is too large for {} workers whose memory takes {}: use a batch of at most {}, "
                "more workers or accumulation",
                batch, workers, most, most);
  }

  MinMaxSplit split;
  const double continuous = solve_continuous(costs, limits, batch);
  std::uint64_t handed_out = 0;
  for (std::size_t i = 0; i < workers; ++i) {
    split.shares.push_back(static_cast<std::uint32_t>(share_at(continuous, costs[i], limits[i])));
    handed_out += split.shares[i];
  }

  // Worker i's b-th sample makes it end at a_i + c_i b. An optimal split hands out the B earliest of these ends; ties
  // go to the lower rank. Starting from the rounded shares, which are those samples but for rounding errors, samples
  // are handed out or taken back at the frontier until the B earliest are reached.
  const auto end_of = [&](std::size_t i, std::uint32_t samples) { return costs[i].seconds(samples); };
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  const auto next_to_get = [&] {
    std::size_t best = kNone;
    for (std::size_t i = 0; i < workers; ++i) {
      if (split.shares[i] < limits[i].maximum &&
          (best == kNone || end_of(i, split.shares[i] + 1) < end_of(best, split.shares[best] + 1))) {
        best = i;
      }
    }
    return best;
  };
  const auto next_to_give = [&] {
    std::size_t best = kNone;
    for (std::size_t i = 0; i < workers; ++i) {
      if (split.shares[i] > limits[i].minimum &&
          (best == kNone || end_of(i, split.shares[i]) >= end_of(best, split.shares[best]))) {
        best = i;
      }
    }
    return best;
  };
  for (; handed_out < batch; ++handed_out) {
    ++split.shares[next_to_get()];
  }
  for (; handed_out > batch; --handed_out) {
    --split.shares[next_to_give()];
  }
  for (;;) {
    const std::size_t to = next_to_get();
    const std::size_t from = next_to_give();
    if (to == kNone || from == kNone || to == from ||
        end_of(to, split.shares[to] + 1) >= end_of(from, split.shares[from])) {
      break;
    }
    ++split.shares[to];
    --split.shares[from];
  }
  split.seconds = step_seconds(given, split.shares);
  split.bound = std::min(continuous, split.seconds);
  return split;
}

}  // namespace motley::data
