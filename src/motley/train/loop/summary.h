// The figures of a finished run, from its metrics alone: test accuracy, gain over the equal split as the run's own
// control steps measured it, the share of time that the worst worker waited, and the audit of samples.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/bench_row.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"

namespace motley::train {

inline constexpr std::int64_t kSettledStep = 20;  // figures of speed are taken after this step

// Rows for what the lines of metrics.jsonl hold; goals of the job become targets.
std::vector<BenchRow> summarise(std::string_view metrics, const Job& job);

// Writes summary.json and prints the table.
Status write_summary(const RunDirectory& run, const Job& job);

}  // namespace motley::train
