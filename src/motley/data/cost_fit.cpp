// The line fit (see cost_fit.h).
#include "motley/data/cost_fit.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace motley::data {
namespace {

constexpr double kPriorNoise = 0.02;     // what noise is taken for until times say otherwise
constexpr double kPriorTimes = 2;        // and how many times that belief is worth
constexpr double kLeastNoise = 0.001;    // clocks and schedulers are never better
constexpr double kFixedPartPrior = 0.5;  // standard deviation of the fixed part's prior, as a part of the step time
constexpr double kAgeWeight = 0.5;       // weight of a group against the next newer one
constexpr int kChangeStreak = 3;         // so many times in a row are a change
constexpr double kChangeNoise = 2.5;     // when off by so many standard deviations
constexpr double kChangeLeast = 0.03;    // and by at least this part of the time

// The lower median: of two times the shorter one, because stalls only ever lengthen a step.
double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double CostFit::Group::median() const {
  return lower_median(seconds);
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
  auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.samples == samples; });
  bool changed = false;
  if (group != groups_.end() && group->seconds.size() >= kChangeStreak) {
    const double expected = group->median();
    const double off = seconds - expected;
    if (std::abs(off) <= expected * std::max(kChangeNoise * noise_, kChangeLeast)) {
      streak_ = 0;
    } else {
      const bool longer = streak_samples_ == samples && (off > 0) == (streak_ > 0);
      streak_ = (longer ? std::abs(streak_) + 1 : 1) * (off > 0 ? 1 : -1);
      streak_samples_ = samples;
      changed = std::abs(streak_) >= kChangeStreak;
    }
  }
  Group newest{samples, {}};
  if (group != groups_.end()) {
    newest = std::move(*group);
    groups_.erase(group);
  }
  newest.seconds.push_back(seconds);
  const std::size_t keep = changed ? kChangeStreak : kGroupTimes;
  if (newest.seconds.size() > keep) {
    newest.seconds.erase(newest.seconds.begin(), newest.seconds.end() - static_cast<std::ptrdiff_t>(keep));
  }
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

void CostFit::refit() {
  // Noise: spread within the groups, each time's deviation clipped at three robust standard deviations.
  std::vector<double> deviations;
  double freedom = kPriorTimes;
  for (const Group& group : groups_) {
    const double median = group.median();
    for (const double seconds : group.seconds) {
      deviations.push_back(std::abs(seconds / median - 1));
    }
    freedom += static_cast<double>(group.seconds.size()) - 1;
  }
  const double clip = 3 * std::max(1.4826 * lower_median(deviations), kPriorNoise);
  double squares = kPriorTimes * kPriorNoise * kPriorNoise;
  for (const double deviation : deviations) {
    squares += std::min(deviation, clip) * std::min(deviation, clip);
  }
  noise_ = std::max(kLeastNoise, std::sqrt(squares / freedom));

  // Line: weighted least squares with the prior as one more point at the origin, then each part held at zero or above.
  const double prior = noise_ * noise_ / (kFixedPartPrior * kFixedPartPrior);
  double weights = prior, sum_b = 0, sum_t = 0, sum_bb = 0, sum_bt = 0, age = 1;
  for (const Group& group : groups_) {
    const double weight = age * static_cast<double>(group.seconds.size());
    const double b = group.samples, t = group.median();
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
    const double median = group.median();
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
  return {{"groups", groups}, {"streak", streak_}, {"streak_samples", streak_samples_}};
}

CostFit CostFit::restore(const nlohmann::json& saved) {
  CostFit fit;
  for (const auto& group : saved.at("groups")) {
    fit.groups_.push_back({group.at("samples"), group.at("seconds")});
    const Group& read = fit.groups_.back();
    const bool sound = read.samples > 0 && !read.seconds.empty() && read.seconds.size() <= kGroupTimes &&
                       std::all_of(read.seconds.begin(), read.seconds.end(),
                                   [](double seconds) { return std::isfinite(seconds) && seconds > 0; });
    if (!sound) {
      throw nlohmann::json::other_error::create(501, "times of a share size that no step can have", &group);
    }
  }
  fit.streak_ = saved.at("streak");
  fit.streak_samples_ = saved.at("streak_samples");
  if (!fit.groups_.empty()) {
    fit.refit();
  }
  return fit;
}

}  // namespace motley::data
