// Which steps of a run its figures of speed are taken from, and what their typical time is: one definition for
// summary.json, for the text that closes a run, and for its page.
#pragma once

#include <cstdint>
#include <vector>

#include "motley/train/records/metrics.h"

namespace motley::train {

// The first steps are left out where there are enough others: the split is still being learned.
inline constexpr std::int64_t kSettlingSteps = 20;

// They point into the metrics that they were chosen from.
struct TypicalSteps {
  // With the run's own split, the commonest one where it moved; of a run that has moved to another plan, those by its
  // last one.
  std::vector<const StepMetrics*> own;
  std::vector<const StepMetrics*> equal;  // baseline steps, or all steps of a run that splits equally
  bool is_planned = false;                // workers compute the layers that a plan gives them
  bool is_settled = false;                // the first ones are left out of `own`
};

// Of steps with this number of workers: after a resume with another number, only those of the present ones compare.
TypicalSteps choose_typical_steps(const Metrics& metrics, std::size_t workers);

// Those whose time is in the middle half, so that no stall counts; all of fewer than four.
std::vector<const StepMetrics*> middle_half(std::vector<const StepMetrics*> steps);

// The mean time of the middle half; 0 of no steps.
double typical_seconds(const std::vector<const StepMetrics*>& steps);

}  // namespace motley::train
