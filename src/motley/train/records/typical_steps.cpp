#include "motley/train/records/typical_steps.h"

#include <algorithm>
#include <map>

namespace motley::train {
namespace {

constexpr std::size_t kEnoughSettled = 5;
constexpr std::size_t kEnoughAlike = 4;  // one in so many

// Those with the split that most of them have, where these are enough: the mean of several splits is none that was.
std::vector<const StepMetrics*> with_commonest_split(const std::vector<const StepMetrics*>& steps) {
  std::map<std::vector<std::int64_t>, std::vector<const StepMetrics*>> by_split;
  for (const StepMetrics* step : steps) by_split[step->batch_split].push_back(step);
  const auto most = std::ranges::max_element(by_split, {}, [](const auto& one) { return one.second.size(); });
  const bool is_enough = most != by_split.end() && most->second.size() >= kEnoughSettled &&
                         most->second.size() * kEnoughAlike >= steps.size();
  return is_enough ? most->second : steps;
}

}  // namespace

TypicalSteps choose_typical_steps(const Metrics& metrics, std::size_t workers) {
  TypicalSteps chosen;
  if (metrics.steps.empty()) return chosen;
  const std::int64_t settled_from = metrics.steps.front().step + kSettlingSteps;
  for (const StepMetrics& step : metrics.steps) {
    if (step.compute_seconds.size() != workers) continue;
    const bool is_planned = step.mode == "plan";
    chosen.is_planned = chosen.is_planned || is_planned;
    if (step.baseline || step.mode == "equal") {
      chosen.equal.push_back(&step);
      continue;
    }
    const bool is_of_another_plan = is_planned && !chosen.own.empty() && step.predicted_seconds &&
                                    chosen.own.back()->predicted_seconds != step.predicted_seconds;
    if (is_of_another_plan) chosen.own.clear();
    chosen.own.push_back(&step);
  }
  std::vector<const StepMetrics*> settled;
  std::ranges::copy_if(chosen.own, std::back_inserter(settled),
                       [&](const StepMetrics* step) { return step->step >= settled_from; });
  chosen.is_settled = settled.size() >= kEnoughSettled;
  if (chosen.is_settled) chosen.own = with_commonest_split(settled);
  return chosen;
}

std::vector<const StepMetrics*> middle_half(std::vector<const StepMetrics*> steps) {
  std::ranges::stable_sort(steps, {}, &StepMetrics::step_seconds);
  const auto quarter = static_cast<std::ptrdiff_t>(steps.size() / 4);
  return {steps.begin() + quarter, steps.end() - quarter};
}

double typical_seconds(const std::vector<const StepMetrics*>& steps) {
  if (steps.empty()) return 0;
  const std::vector<const StepMetrics*> middle = middle_half(steps);
  double sum = 0;
  for (const StepMetrics* step : middle) sum += step->step_seconds;
  return sum / static_cast<double>(middle.size());
}

}  // namespace motley::train
