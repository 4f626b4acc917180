// A run directory as values: what the trainer wrote down of a run (docs/reference/run-directory.md), read back and
// checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/planning/simulate/simulate.h"
#include "motley/serial/bench_row.h"
#include "motley/train/records/metrics.h"
#include "motley/train/records/run_file.h"

namespace motley::report {

using train::EmbeddingMetrics;
using train::EvaluationMetrics;
using train::EventMetrics;
using train::StepMetrics;

// A span of the timeline of one rank.
struct TraceSpan {
  int rank = 0;
  std::int64_t step = 0;
  std::string phase;
  double begin = 0, end = 0;  // seconds from the trace's zero
};

struct Run {
  std::string name;  // of the folder
  train::RunFile file;
  train::Metrics metrics;
  std::vector<BenchRow> summary;
  std::string job;  // job.yaml as it is
  std::vector<TraceSpan> trace;
  std::optional<planning::PredictedStep> prediction;  // of a planned run
};

// Reads run.json (which must exist) and, where they exist, metrics.jsonl, summary.json, job.yaml and timeline.json; and
// the files of the plan that run.json names.
// Errors name the file, and the line or field.
Result<Run> read_run(const std::filesystem::path& folder);

}  // namespace motley::report
