// What a run says of itself while it goes on: the lines of metrics.jsonl, TensorBoard's curves, the line of progress.
// Rank 0's says it; those of the other ranks are silent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/progress.h"
#include "motley/train/loop/samples.h"
#include "motley/train/loop/tensorboard.h"
#include "motley/train/records/metrics.h"

namespace motley::train {

class Reporter {
 public:
  struct Options {
    std::int64_t steps = 0;         // of the whole job
    bool has_accuracy = true;       // else the metric is the mean absolute error
    bool is_async = false;          // ranks may be at different steps
    bool has_remote_data = false;   // samples come from a data server
    bool has_served_table = false;  // and embedding rows from servers
    bool is_elastic = false;        // another rank may have to go on with this
  };
  explicit Reporter(Options options) : options_(options), started_(monotonic_seconds()) {}

  // Rank 0: from now on it writes into the run's folder, after what is there.
  Status open(const std::filesystem::path& folder);
  bool is_open() const { return outputs_.has_value(); }
  void close() { outputs_.reset(); }
  // The line of the step that was done last, if it is this one: for who goes on where the file has none.
  Status repeat(std::int64_t step);
  // The split's changes up to now are no news.
  void follow(const BatchPlan& plan) { moves_ = plan.moves(); }

  // `reports` are all ranks', by rank. `seconds`: how long the step took.
  Status step(const Step& step, std::span<const Report> reports, const BatchPlan& plan, double seconds);
  Status evaluation(std::int64_t step, std::uint64_t epoch, const std::vector<Evaluator::Value>& values);
  Status audit(std::int64_t step, const SampleAudit::Finding& finding);
  // Something that happened after a step, such as "checkpoint", in words.
  Status event(std::int64_t step, const std::string& kind, const std::string& text);
  // Ends a line of progress before something else is printed.
  void clear_progress();
  Status flush();

  double started() const { return started_; }                    // monotonic seconds
  double now() const { return monotonic_seconds() - started_; }  // seconds of the run
  // Of a rank that has joined a run: so many are over.
  void set_now(double seconds) { started_ = monotonic_seconds() - seconds; }

 private:
  struct Outputs {
    std::filesystem::path metrics;
    TensorBoardWriter tensorboard;
    ProgressLine progress;
  };
  StepMetrics measure(const Step& step, std::span<const Report> reports, const BatchPlan& plan, double seconds);
  Status write(const MetricsLine& line) const;
  Status draw(const StepMetrics& line);
  void show_progress(const Step& step, const StepMetrics& line);

  const Options options_;
  double started_;
  std::optional<Outputs> outputs_;
  std::uint64_t moves_ = 0;  // of the split, that were reported
  double smooth_step_seconds_ = 0;
  double smooth_step_samples_ = 0;   // likewise
  std::optional<StepMetrics> last_;  // where it is elastic
};

}  // namespace motley::train
