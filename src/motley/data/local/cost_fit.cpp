// The line fit (see cost_fit.h).
#include "motley/data/local/cost_fit.h"

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

}  // namespace

void CostFit::Group::add(double time, std::size_t keep) {
  seconds.push_back(time);
  if (seconds.size() > keep) {
    seconds.erase(seconds.begin(), seconds.end() - static_cast<std::ptrdiff_t>(keep));
  }
  median = lower_median(seconds);  // of two times the shorter one, because stalls only ever lengthen a step
}

void CostFit::forget() {
  *this = CostFit();
}

std::size_t CostFit::times_at(std::uint32_t samples) const {
  for (const Group& group : groups_) {
    if (group.samples == samples) {
      return group.seconds.size();
    }
  }
  return 0;
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
  const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.samples == samples; });
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
  if (groups_.size() > kGroups) {
    groups_.pop_back();
  }
  do {
    refit();
  } while (drop_stale_group());
  return changed;
}

// Compares a time with the median at its share size before a streak began or, where too few times are known, with the
// nearest size's median carried over; there the line's slope may be anything from flat to through the origin.
bool CostFit::tells_of_change(std::uint32_t samples, double seconds) {
  if (groups_.empty()) {
    return false;
  }
  const auto distance = [&](const Group& group) { return std::abs(double(group.samples) - double(samples)); };
  const auto nearest = std::min_element(groups_.begin(), groups_.end(), [&](const Group& a, const Group& b) {
    const bool a_knows = a.seconds.size() >= kChangeReference, b_knows = b.seconds.size() >= kChangeReference;
    return a_knows != b_knows ? a_knows : distance(a) < distance(b);
  });
  if (nearest->seconds.size() < kChangeReference) {
    return false;
  }
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
    const double median = group.median;
    for (const double seconds : group.seconds) {
      deviations.push_back(std::abs(seconds / median - 1));
    }
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
  if (groups_.size() < 2 || groups_.front().seconds.size() < kChangeStreak) {
    return false;
  }
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
  if (!fit.groups_.empty()) {
    fit.refit();
  }
  return fit;
}

}  // namespace motley::data
