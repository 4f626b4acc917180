// The figures of a finished run, from its metrics alone: test accuracy, gain over the equal split as the run's own
// baseline steps measured it, the share of time that the worst worker waited, and the audit of samples.
#pragma once

#include <string>

#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"

namespace motley::train {

// Writes summary.json.
Status write_summary(const RunDirectory& run, const Job& job);

// "a step took 27.7 ms, and the plan predicts 12.3 ms: 125 % more than predicted", of a run that has ended; empty where
// there is nothing to compare.
std::string compare_with_plan(const RunDirectory& run, const Job& job);

}  // namespace motley::train
