// The min-max split, and the fit of the lines that it is given.
#include "motley/data/local/worker_cost.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "motley/base/statistics.h"

namespace motley::data {
namespace {

constexpr double kPriorNoise = 0.02;         // what noise is taken for until times say otherwise
constexpr double kPriorTimes = 2;            // and how many times that belief is worth
constexpr std::size_t kTimesToClip = 6;      // with fewer, nobody can tell a stall from noise
constexpr double kMinNoise = 0.001;          // clocks and schedulers are never better
constexpr double kFixedPartPrior = 0.5;      // standard deviation of the fixed part's prior, as a part of the step time
constexpr double kAgeWeight = 0.5;           // weight of a group against the next newer one
constexpr int kChangeStreak = 3;             // so many times in a row are a change
constexpr std::size_t kChangeReference = 2;  // against so many times before them
constexpr double kChangeNoise = 3.5;         // when off by so many standard deviations
constexpr double kChangeLeast = 0.03;        // and by at least this part of the time

// Below a picosecond per sample a worker's time is flat; the floor keeps the slopes' inverses finite.
constexpr double kMinPerSample = 1e-12;

// The worker's real-valued share if all end at T.
double share_at(double seconds, const WorkerCost& cost, const WorkerLimits& limits) {
  return std::clamp((seconds - cost.fixed) / cost.per_sample, static_cast<double>(limits.minimum),
                    static_cast<double>(limits.maximum));
}

// The T at which the real-valued shares add up to the batch, in closed form: every worker's share as a function of T is
// piecewise linear, so that T is found between two neighbouring corners.
double solve_continuous(std::span<const WorkerCost> costs, std::span<const WorkerLimits> limits, double batch) {
  const auto finish = [&](std::size_t i, std::uint32_t samples) {
    return costs[i].fixed + costs[i].per_sample * samples;
  };
  std::vector<double> corners;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    corners.push_back(finish(i, limits[i].minimum));
    corners.push_back(finish(i, limits[i].maximum));
  }
  std::ranges::sort(corners);
  // The last corner at which not more than the batch is handed out.
  const auto above = std::ranges::partition_point(corners, [&](double corner) {
    double total = 0;
    for (std::size_t i = 0; i < costs.size(); ++i) total += share_at(corner, costs[i], limits[i]);
    return total <= batch;
  });
  if (above == corners.end()) return corners.back();
  const double from = above == corners.begin() ? corners.front() : *(above - 1);
  const double to = *above;
  // Between the two the active workers are those whose share grows: T = (B - rest + sum a/c) / sum 1/c.
  double rest = 0, slopes = 0, offsets = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const double begin = finish(i, limits[i].minimum), end = finish(i, limits[i].maximum);
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
  for (std::size_t i = 0; i < costs.size(); ++i) seconds = std::max(seconds, costs[i].seconds(shares[i]));
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
    costs[i].per_sample = std::max(costs[i].per_sample, kMinPerSample);
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
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  // When worker i ends with its present share, and so many samples more.
  const auto finish = [&](std::size_t i, std::uint32_t more) { return costs[i].seconds(split.shares[i] + more); };
  const auto next_to_get = [&] {
    std::size_t best = kNone;
    for (std::size_t i = 0; i < workers; ++i) {
      if (split.shares[i] < limits[i].maximum && (best == kNone || finish(i, 1) < finish(best, 1))) best = i;
    }
    return best;
  };
  const auto next_to_give = [&] {
    std::size_t best = kNone;
    for (std::size_t i = 0; i < workers; ++i) {
      if (split.shares[i] > limits[i].minimum && (best == kNone || finish(i, 0) >= finish(best, 0))) best = i;
    }
    return best;
  };
  for (; handed_out < batch; ++handed_out) ++split.shares[next_to_get()];
  for (; handed_out > batch; --handed_out) --split.shares[next_to_give()];
  for (;;) {
    const std::size_t to = next_to_get(), from = next_to_give();
    if (to == kNone || from == kNone || to == from || finish(to, 1) >= finish(from, 0)) break;
    ++split.shares[to];
    --split.shares[from];
  }
  split.seconds = step_seconds(given, split.shares);
  split.bound = std::min(continuous, split.seconds);
  return split;
}

void CostFit::Group::add(double time, std::size_t keep) {
  seconds.push_back(time);
  if (seconds.size() > keep) {
    seconds.erase(seconds.begin(), seconds.end() - static_cast<std::ptrdiff_t>(keep));
  }
  median = lower_median(seconds);  // of two times the shorter one, because stalls only ever lengthen a step
}

std::size_t CostFit::times_at(std::uint32_t samples) const {
  const auto group = std::ranges::find(groups_, samples, &Group::samples);
  return group == groups_.end() ? 0 : group->seconds.size();
}

double CostFit::standard_error(std::uint32_t samples) const {
  // A median's standard error is 1.25 times a mean's.
  return 1.25 * noise_ * cost_.seconds(samples) / std::sqrt(std::max(1.0, static_cast<double>(times_at(samples))));
}

bool CostFit::observe(std::uint32_t samples, double seconds) {
  MOTLEY_INVARIANT(samples > 0 && std::isfinite(seconds) && seconds >= 0, "a step of {} samples in {} s", samples,
                   seconds);
  seconds = std::max(seconds, 1e-9);
  const bool changed = tells_of_change(samples, seconds);
  const auto group = std::ranges::find(groups_, samples, &Group::samples);
  Group newest{samples, {}, 0};
  if (group != groups_.end()) {
    newest = std::move(*group);
    groups_.erase(group);
  }
  newest.add(seconds, changed ? kChangeStreak : kGroupTimes);
  if (changed) {
    groups_.clear();
    streak_ = 0;
  }
  groups_.insert(groups_.begin(), std::move(newest));
  if (groups_.size() > kGroups) groups_.pop_back();
  do {
    refit();
  } while (drop_stale_group());
  return changed;
}

// Compares a time with the median at its share size before a streak began or, where too few times are known, with the
// nearest size's median carried over; there the line's slope may be anything from flat to through the origin.
bool CostFit::tells_of_change(std::uint32_t samples, double seconds) {
  if (groups_.empty()) return false;
  const auto distance = [&](const Group& group) { return std::abs(double(group.samples) - double(samples)); };
  const auto nearest = std::ranges::min_element(groups_, [&](const Group& a, const Group& b) {
    const bool a_knows = a.seconds.size() >= kChangeReference, b_knows = b.seconds.size() >= kChangeReference;
    return a_knows != b_knows ? a_knows : distance(a) < distance(b);
  });
  if (nearest->seconds.size() < kChangeReference) return false;
  if (streak_ == 0 || streak_samples_ != samples) {
    streak_ = 0;
    streak_samples_ = samples;
    const double median = nearest->median;
    expected_ = median + cost_.per_sample * (double(samples) - double(nearest->samples));
    const double unsure = 1 + 2 / static_cast<double>(nearest->seconds.size());
    allowed_ = expected_ * std::max(kChangeNoise * noise_, kChangeLeast) * unsure +
               distance(*nearest) * median / nearest->samples;
  }
  const double off = seconds - expected_;
  if (std::abs(off) <= allowed_) {
    streak_ = 0;
  } else {
    const int side = off > 0 ? 1 : -1;
    streak_ = streak_ * side > 0 ? streak_ + side : side;
  }
  return std::abs(streak_) >= kChangeStreak;
}

void CostFit::refit() {
  // Noise: spread within the groups, each time's deviation clipped at three robust standard deviations.
  std::vector<double> deviations;
  double freedom = kPriorTimes;
  for (const Group& group : groups_) {
    for (const double seconds : group.seconds) deviations.push_back(std::abs(seconds / group.median - 1));
    freedom += static_cast<double>(group.seconds.size()) - 1;
  }
  const double clip = deviations.size() < kTimesToClip ? std::numeric_limits<double>::infinity()
                                                       : 3 * std::max(1.4826 * lower_median(deviations), kPriorNoise);
  double squares = kPriorTimes * kPriorNoise * kPriorNoise;
  for (const double deviation : deviations) {
    squares += std::min(deviation, clip) * std::min(deviation, clip);
  }
  noise_ = std::max(kMinNoise, std::sqrt(squares / freedom));

  // Line: weighted least squares with the prior as one more point at the origin, then each part held at zero or above.
  const double prior = noise_ * noise_ / (kFixedPartPrior * kFixedPartPrior);
  double weights = prior, sum_b = 0, sum_t = 0, sum_bb = 0, sum_bt = 0, age = 1;
  for (const Group& group : groups_) {
    const double weight = age * static_cast<double>(group.seconds.size());
    const double b = group.samples, t = group.median;
    weights += weight;
    sum_b += weight * b;
    sum_t += weight * t;
    sum_bb += weight * b * b;
    sum_bt += weight * b * t;
    age *= kAgeWeight;
  }
  const double determinant = weights * sum_bb - sum_b * sum_b;
  cost_.per_sample = (weights * sum_bt - sum_b * sum_t) / determinant;
  cost_.fixed = (sum_bb * sum_t - sum_b * sum_bt) / determinant;
  if (cost_.fixed < 0) {
    cost_ = {0, sum_bt / sum_bb};
  } else if (cost_.per_sample < 0) {
    cost_ = {sum_t / (weights - prior), 0};
  }
}

// When the line cannot pass near all groups, the oldest one tells of a time that is over (or of a far part of a curve).
bool CostFit::drop_stale_group() {
  if (groups_.size() < 2 || groups_.front().seconds.size() < kChangeStreak) return false;
  for (const Group& group : groups_) {
    const double median = group.median;
    const double times = static_cast<double>(std::min(group.seconds.size(), groups_.front().seconds.size()));
    const double allowed = median * std::max(5 * noise_ / std::sqrt(times), 2 * kChangeLeast);
    if (std::abs(cost_.seconds(group.samples) - median) > allowed) {
      groups_.pop_back();
      return true;
    }
  }
  return false;
}

nlohmann::json CostFit::save() const {
  nlohmann::json groups = nlohmann::json::array();
  for (const Group& group : groups_) {
    groups.push_back({{"samples", group.samples}, {"seconds", group.seconds}});
  }
  return {{"groups", groups},
          {"streak", streak_},
          {"streak_samples", streak_samples_},
          {"expected", expected_},
          {"allowed", allowed_}};
}

CostFit CostFit::restore(const nlohmann::json& saved) {
  CostFit fit;
  for (const auto& group : saved.at("groups")) {
    Group& read = fit.groups_.emplace_back();
    read.samples = group.at("samples");
    for (const double seconds : group.at("seconds").get<std::vector<double>>()) {
      if (read.samples == 0 || !std::isfinite(seconds) || seconds <= 0) {
        throw nlohmann::json::other_error::create(501, "times of a share size that no step can have", &group);
      }
      read.add(seconds, kGroupTimes);
    }
    if (read.seconds.empty()) {
      throw nlohmann::json::other_error::create(501, "a share size without times", &group);
    }
  }
  fit.streak_ = saved.at("streak");
  fit.streak_samples_ = saved.at("streak_samples");
  fit.expected_ = saved.at("expected");
  fit.allowed_ = saved.at("allowed");
  if (!fit.groups_.empty()) fit.refit();
  return fit;
}

}  // namespace motley::data
