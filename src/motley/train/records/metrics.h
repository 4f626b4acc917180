// The lines of metrics.jsonl as values (docs/reference/run-directory.md): what a run writes down of its steps,
// evaluations and events, and how that is read back. The description of the fields is in metrics.cpp;
// docs/schema/metrics.schema.json follows from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "motley/base/result.h"

namespace motley::train {

// What each rank moved of rows that servers have.
struct EmbeddingMetrics {
  std::vector<double> pulled_bytes, pushed_bytes;
  std::vector<double> wait_seconds;  // part of the step's wait_seconds
  std::vector<double> needed, cached, prefetched;
};

// What the fitted costs say of the batch split.
struct SplitMetrics {
  std::optional<double> bound_seconds;  // no split is predicted to take less
  std::optional<double> equal_seconds;  // predicted for the equal split
};

// One optimizer step. The vectors have one value a rank, or none where it was not measured; times are seconds.
struct StepMetrics {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  double time = 0;  // since the run began
  double loss = 0;  // of the global batch; not finite where the run diverged
  std::optional<double> accuracy, mean_absolute_error;
  double learning_rate = 0;
  double step_seconds = 0;
  std::string mode;       // dynamic, equal, fixed, plan, replay or work-queue
  bool baseline = false;  // done with the equal split, to compare with
  std::vector<std::int64_t> batch_split, samples;
  std::vector<double> compute_seconds, load_seconds, gradient_sync_seconds, wait_seconds, memory_bytes;
  std::vector<std::int64_t> staleness;
  std::vector<double> data_wait_seconds, sent_bytes;
  std::optional<EmbeddingMetrics> embedding;
  std::optional<double> predicted_seconds;
  SplitMetrics split;
  std::optional<std::string> decision;  // why the split moved or stayed, where that changed
};

// Of the test data; none where the task has no such figure, or it cannot be told.
struct EvaluationFigures {
  std::optional<double> loss, accuracy, mean_absolute_error, auc;
};

struct EvaluationMetrics {
  std::int64_t step = 0;
  std::uint64_t epoch = 0;
  double time = 0;
  EvaluationFigures evaluation;
};

struct EventMetrics {
  std::int64_t step = 0;
  std::optional<std::uint64_t> epoch;
  double time = 0;
  std::string event;  // audit, checkpoint, interrupted, moved, resumed, warning; other kinds are shown as they are
  std::string text;
  std::optional<std::int64_t> samples_lost_or_duplicated;  // of the epoch that ended
};

using MetricsLine = std::variant<StepMetrics, EvaluationMetrics, EventMetrics>;

struct Metrics {
  std::vector<StepMetrics> steps;  // ascending; those that were rolled back and done again once, as done last
  std::vector<EvaluationMetrics> evaluations;  // likewise
  std::vector<EventMetrics> events;
  bool is_torn = false;  // the last line was cut off, as happens to a run that was killed
};

// One line, without its end.
std::string to_json(const MetricsLine& line);
// Errors: kInvalidInput with the field, its value and what would be accepted.
Result<MetricsLine> parse_metrics_line(std::string_view line);

// Errors: kInvalidInput with the name, the line's number and the field; kIo.
Result<Metrics> parse_metrics(std::string_view text, const std::string& name);
Result<Metrics> read_metrics(const std::filesystem::path& file);

// docs/schema/metrics.schema.json.
std::string metrics_schema();

}  // namespace motley::train
