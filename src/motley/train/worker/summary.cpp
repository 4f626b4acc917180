#include "motley/train/worker/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> goal(double value) {
  return value > 0 ? std::optional<double>(value) : std::nullopt;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// By rank; the ranks of the last step remain.
void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(values.size());
  std::ranges::transform(sums, values, sums.begin(), std::plus());
}

// What the lines add up to.
class Figures {
 public:
  explicit Figures(const Metrics& metrics);
  std::vector<BenchRow> rows(const Job& job) const;

 private:
  // Rows one after the other, with the job's name.
  struct Table {
    const Job& job;
    std::vector<BenchRow> rows = {};
    void add(const char* metric, double value, const char* unit, bool more, std::optional<double> target = {},
             std::optional<double> limit = {}, std::string note = "") {
      rows.push_back({job.name, metric, value, unit, more, target, limit, std::nullopt, std::move(note)});
    }
  };
  // Of all ranks together: sums over the balanced steps.
  struct Traffic {
    double sent = 0, pulled = 0, pushed = 0, needed = 0, cached = 0, prefetched = 0;
  };
  void add_step(const StepMetrics& line);
  void add_rows(const EmbeddingMetrics& rows);
  void list_quality(Table& table) const;
  void list_speed(Table& table) const;
  void list_traffic(Table& table) const;

  std::vector<double> balanced_;  // seconds of a step
  std::vector<double> baseline_;
  std::vector<double> limits_;
  std::vector<double> waits_;  // a rank: sum over steps
  double balanced_sum_ = 0;
  double planned_ = 0;                   // seconds of a step, by the plan that the run followed last
  std::vector<std::int64_t> staleness_;  // of all ranks, where they may be asynchronous
  Traffic traffic_;
  std::vector<double> rows_waits_;  // a rank: sum over steps
  std::optional<double> accuracy_;
  std::optional<double> auc_;
  std::optional<double> loss_;
  std::optional<std::int64_t> not_used_once_;
};

Figures::Figures(const Metrics& metrics) {
  for (const EvaluationMetrics& line : metrics.evaluations) {
    loss_ = line.evaluation.loss;
    accuracy_ = line.evaluation.accuracy ? line.evaluation.accuracy : accuracy_;
    auc_ = line.evaluation.auc ? line.evaluation.auc : auc_;
  }
  for (const EventMetrics& line : metrics.events) {
    if (line.samples_lost_or_duplicated) {
      not_used_once_ = not_used_once_.value_or(0) + *line.samples_lost_or_duplicated;
    }
  }
  for (const StepMetrics& line : metrics.steps) {
    staleness_.insert(staleness_.end(), line.staleness.begin(), line.staleness.end());
    if (line.step > kSettledStep && line.baseline) {
      baseline_.push_back(line.step_seconds);
    } else if (line.step > kSettledStep) {
      add_step(line);
    }
  }
}

void Figures::add_step(const StepMetrics& line) {
  if (line.mode == "plan" && line.predicted_seconds) {
    if (planned_ != *line.predicted_seconds) {  // steps of another plan
      balanced_.clear();
      traffic_ = {};
    }
    planned_ = *line.predicted_seconds;
  }
  balanced_.push_back(line.step_seconds);
  balanced_sum_ += line.step_seconds;
  add_to(waits_, line.wait_seconds);
  traffic_.sent += sum(line.sent_bytes);
  if (line.embedding) {
    add_rows(*line.embedding);
  }
  if (line.split.bound_seconds.value_or(0) > 0) {
    limits_.push_back(line.split.equal_seconds.value_or(0) / *line.split.bound_seconds);
  }
}

void Figures::add_rows(const EmbeddingMetrics& rows) {
  traffic_.pulled += sum(rows.pulled_bytes);
  traffic_.pushed += sum(rows.pushed_bytes);
  traffic_.needed += sum(rows.needed);
  traffic_.cached += sum(rows.cached);
  traffic_.prefetched += sum(rows.prefetched);
  add_to(rows_waits_, rows.wait_seconds);
}

std::vector<BenchRow> Figures::rows(const Job& job) const {
  Table table{job};
  list_quality(table);
  if (!balanced_.empty()) {
    list_speed(table);
  }
  list_traffic(table);
  if (!staleness_.empty()) {
    const double mean =
        std::accumulate(staleness_.begin(), staleness_.end(), 0.0) / static_cast<double>(staleness_.size());
    table.add("worst_staleness", static_cast<double>(std::ranges::max(staleness_)), "steps", false, std::nullopt,
              goal(static_cast<double>(job.gradient_sync.staleness)), fmt::format("mean {:.2f}", mean));
  }
  if (not_used_once_) {
    table.add("samples_not_used_exactly_once", static_cast<double>(*not_used_once_), "samples", false, 0.0);
  }
  return std::move(table.rows);
}

void Figures::list_quality(Table& table) const {
  if (accuracy_) {
    table.add("test_accuracy", *accuracy_, "share", true, goal(table.job.acceptance.test_accuracy));
  } else if (loss_) {
    table.add("test_loss", *loss_, "", false);
  }
  if (auc_) {
    table.add("test_auc", *auc_, "share", true, goal(table.job.acceptance.test_auc));
  }
}

void Figures::list_speed(Table& table) const {
  if (!baseline_.empty()) {
    table.add("step_speedup_over_equal", median(baseline_) / median(balanced_), "ratio", true,
              goal(table.job.acceptance.speedup_over_equal),
              limits_.empty() ? std::nullopt : std::optional<double>(median(limits_)),
              "baseline steps with the equal split, in the same run; limit: compute only, by the fitted costs");
  }
  table.add("step_seconds", median(balanced_), "s", false, std::nullopt, std::nullopt, "median");
  if (planned_ > 0) {
    table.add("step_prediction_error", std::abs(planned_ / median(balanced_) - 1), "share", false, std::nullopt,
              std::nullopt, fmt::format("the plan predicts {} a step", format_seconds(planned_)));
  }
  table.add("worst_wait_share", std::ranges::max(waits_) / balanced_sum_, "share", false,
            goal(table.job.acceptance.wait_fraction), std::nullopt, fmt::format("after step {}", kSettledStep));
}

void Figures::list_traffic(Table& table) const {
  const double steps = static_cast<double>(balanced_.size());
  if (traffic_.sent > 0) {
    table.add("sent_bytes_per_step", traffic_.sent / steps, "bytes", false, std::nullopt, std::nullopt,
              "gradients and activations, all workers");
  }
  if (traffic_.needed <= 0) {
    return;
  }
  const double asked = traffic_.needed - traffic_.cached;
  table.add(
      "row_bytes_per_step", traffic_.pulled / steps + traffic_.pushed / steps, "bytes", false, std::nullopt,
      std::nullopt,
      fmt::format("all workers, pulled {}, pushed {}; of {:.0f} rows {:.1f} % were cached, of the others {:.1f} % "
                  "asked for ahead",
                  format_bytes(traffic_.pulled / steps), format_bytes(traffic_.pushed / steps), traffic_.needed / steps,
                  100 * traffic_.cached / traffic_.needed, asked > 0 ? 100 * traffic_.prefetched / asked : 0));
  table.add("worst_row_wait_share", std::ranges::max(rows_waits_) / balanced_sum_, "share", false, std::nullopt,
            std::nullopt, "of a step, for rows");
}

}  // namespace

std::vector<BenchRow> summarise(const Metrics& metrics, const Job& job) {
  return Figures(metrics).rows(job);
}

Status write_summary(const RunDirectory& run, const Job& job) {
  MOTLEY_ASSIGN(const Metrics metrics, read_metrics(run.metrics_file()));
  const std::vector<BenchRow> rows = summarise(metrics, job);
  MOTLEY_TRY(write_file(run.summary_file(), to_json(rows)));
  std::printf("%s", to_table(rows).c_str());
  std::fflush(stdout);
  return {};
}

}  // namespace motley::train
