// The figures of a finished run, from its metrics alone: test accuracy, gain over the equal split as the run's own
// baseline steps measured it, the share of time that the worst worker waited, and the audit of samples.
#pragma once

#include <vector>

#include "motley/base/result.h"
#include "motley/serial/bench_row.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/records/metrics.h"

namespace motley::train {

inline constexpr std::int64_t kSettledStep = 20;  // figures of speed are taken after this step

// Rows for what the metrics hold; goals of the job become targets.
std::vector<BenchRow> summarise(const Metrics& metrics, const Job& job);

// Writes summary.json and prints the table.
Status write_summary(const RunDirectory& run, const Job& job);

}  // namespace motley::train
