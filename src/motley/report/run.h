// A run directory as values: what the trainer wrote down of a run (docs/reference/run-directory.md), read back and
// checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/planning/simulate/prediction.h"
#include "motley/serial/bench_row.h"

namespace motley::report {

struct Worker {
  int rank = 0;
  std::string name, device;
  std::optional<std::string> emulated;  // what is emulated, such as "3 ms a sample"
};

// One optimizer step. The vectors have one value a worker, or none where it was not measured; times are seconds.
struct Step {
  std::int64_t step = 0, epoch = 0;
  double time = 0;  // since the run began
  double loss = 0;  // not finite where the run diverged
  std::optional<double> accuracy, predicted_seconds;
  double step_seconds = 0;
  std::string mode;       // dynamic, equal, fixed, replay, pull or plan
  bool baseline = false;  // done with the equal split, to compare with
  std::vector<double> samples, compute_seconds, load_seconds, gradient_sync_seconds, wait_seconds;
  std::vector<double> sent_bytes;  // gradients and activations, over the network
  // Rows that servers have: what they took on the wire, in wait_seconds, and where they came from.
  std::vector<double> rows_pulled_bytes, rows_pushed_bytes, rows_wait_seconds, rows_needed, rows_cached,
      rows_prefetched;
  std::string decision;  // why shares moved or stayed, where that changed
};

struct Evaluation {
  std::int64_t step = 0;
  std::optional<double> loss, accuracy, auc;
};

struct Event {
  std::int64_t step = 0;
  double time = 0;
  std::string kind, text;
};

// A span of the timeline of one rank.
struct TraceSpan {
  int rank = 0;
  std::int64_t step = 0;
  std::string phase;
  double begin = 0, end = 0;  // seconds from the trace's zero
};

struct Run {
  std::string name;  // of the folder
  std::string version, started, gradient_sync, machine, exit;
  bool finished = false;
  std::optional<std::string> error;
  std::vector<Worker> workers;
  std::vector<Step> steps;  // ascending; steps that were rolled back and done again appear once, as done last
  std::vector<Evaluation> evaluations;
  std::vector<Event> events;
  bool torn = false;  // the last line of metrics.jsonl was cut off, as happens to a run that was killed
  std::vector<BenchRow> summary;
  std::string job;  // job.yaml as it is
  std::vector<TraceSpan> trace;
  double batch = 0, training_samples = 0;             // 0: not known, as of older runs
  std::optional<double> price_per_hour;               // of all workers
  std::optional<planning::PredictedStep> prediction;  // of a planned run
};

// Reads run.json (which must exist) and, where they exist, metrics.jsonl, summary.json, job.yaml and timeline.json; and
// the files of the plan that run.json names.
// Errors name the file, and the line or field.
Result<Run> read_run(const std::filesystem::path& folder);

}  // namespace motley::report
