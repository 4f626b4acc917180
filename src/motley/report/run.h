// A run directory as values: what the trainer wrote down of a run (docs/reference/run-directory.md), read back and
// checked; and the figures that its steps give: what a typical step looks like as it was balanced, with the equal
// split, and at the optimum that the same workers could have reached.
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

// Where a worker's time goes in a step, in seconds.
struct Phases {
  double samples = 0, load = 0, compute = 0, gradient_sync = 0, wait = 0;
  double busy() const { return load + compute; }
  double total() const { return load + compute + gradient_sync + wait; }
};

// What a worker sends in a step, and where the rows come from that it looks up. Bytes on the wire, seconds, rows.
struct Traffic {
  double sent = 0;  // gradients and activations
  double pulled = 0, pushed = 0, rows_wait = 0, rows_needed = 0, rows_cached = 0, rows_prefetched = 0;
};

// A typical step (train/records/typical_steps.h): each value is the mean over the same steps, so that the workers'
// samples add up to the batch, and their parts to the step.
struct TypicalStep {
  std::vector<Phases> workers;
  std::vector<Traffic> traffic;  // by worker
  double seconds = 0;
  std::size_t steps = 0;  // of how many the middle half was taken

  // The workers' samples as integers that add up to what the means add up to.
  std::vector<std::int64_t> whole_samples() const;
  Phases mean_worker() const;  // of those that have samples
};

struct Figures {
  std::optional<TypicalStep> balanced;  // steps with the run's own split
  std::optional<TypicalStep> equal;     // baseline steps, or all steps of a run that splits equally
  std::optional<TypicalStep> optimum;   // nobody waits: see compute_optimum; not where workers compute different layers
  bool is_planned = false;              // workers compute the layers that a plan gives them
  bool is_settled = false;              // the first steps are left out of `balanced`
  std::optional<double> predicted;      // seconds of a step, by the plan that the run followed last

  double batch = 0;    // samples of a whole step; 0: not known
  double samples = 0;  // of a typical step, which the last one of an epoch makes smaller; 0: not known

  // Of the run's own steps, or of those with the equal split where there are no others.
  const std::optional<TypicalStep>& basis() const { return balanced ? balanced : equal; }
  std::optional<double> speedup() const;             // equal over balanced
  std::optional<double> possible_speedup() const;    // equal over optimum
  std::optional<double> max_wait_fraction() const;   // of the balanced step's time, over the workers
  std::optional<double> samples_per_second() const;  // of basis()
};

// Its name, or "rank 2" where it has none.
std::string worker_name(const Run& run, std::size_t worker);

// From a start of the run, or a resumption, to the end of its processes.
struct Attempt {
  double started = 0;  // seconds since 1970; 0: not known
  double seconds = 0;
  std::int64_t first_step = 0, last_step = -1;  // of those that count: what a later attempt did again is that one's
  int workers = 0;
  std::optional<std::string> exit;  // none while it goes on, and after it was killed
};
std::vector<Attempt> list_attempts(const Run& run);
// Of all attempts together.
double run_seconds(const Run& run);

Figures compute_figures(const Run& run);

std::int64_t count_steps(const Run& run);
// "200 steps, 0.85 epochs"; "58 steps recorded" where a script recorded them. Of a run that has steps.
std::string describe_length(const Run& run, const Figures& figures);
// Of the step's global batch; 0: not known.
double count_samples(const StepMetrics& step, const Figures& figures);

// The training loss at the beginning and at the end.
struct LossChange {
  enum class Kind { kUsual, kGrew, kStayed, kNotFinite };
  double first = 0, last = 0;
  std::size_t steps = 0;
  Kind kind() const;
};
// None where no step says it, as of a script that records none.
std::optional<LossChange> measure_loss(const Run& run);
std::string describe_loss(const LossChange& loss);  // "0.41, 2.31 at the beginning"

// The least step time for the same samples when each worker keeps the speed it showed: worker i did n_i samples in
// t_i seconds, so all of them together do Σ n_i / t_i samples a second, and B = Σ n_i samples take B / Σ (n_i / t_i).
// The exchange is the smallest that a worker showed (that of a worker which came last and found all others ready).
// None where a time is missing.
std::optional<TypicalStep> compute_optimum(const TypicalStep& step);

}  // namespace motley::report
