#include "motley/train/worker/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/serial/bench_row.h"
#include "motley/train/loop/prediction_check.h"
#include "motley/train/records/metrics.h"
#include "motley/train/records/typical_steps.h"

namespace motley::train {
namespace {

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

// What the lines of steps say of speed; "balanced" ones have the split that the run has found.
struct Speed {
  double balanced = 0, baseline = 0;  // seconds of a typical step; 0: none
  std::size_t steps = 0;              // that are balanced
  double all_seconds = 0;             // of all balanced steps that are settled, by all plans
  std::vector<double> limits;
  double planned = 0;                    // seconds of a step, by the plan that the run followed last
  std::vector<double> waits, row_waits;  // a rank: sum over the steps of all_seconds
  std::vector<std::int64_t> staleness;   // of all ranks, where they may be asynchronous
  // Of all ranks together: sums over the balanced steps.
  struct Traffic {
    double sent = 0, pulled = 0, pushed = 0, needed = 0, cached = 0, prefetched = 0;
  } traffic = {};

  void add_waits(const StepMetrics& line);
  void add_traffic(const StepMetrics& line);
};

void Speed::add_waits(const StepMetrics& line) {
  all_seconds += line.step_seconds;
  add_to(waits, line.wait_seconds);
  if (line.embedding) add_to(row_waits, line.embedding->wait_seconds);
  if (line.split.bound_seconds.value_or(0) > 0) {
    limits.push_back(line.split.equal_seconds.value_or(0) / *line.split.bound_seconds);
  }
}

void Speed::add_traffic(const StepMetrics& line) {
  traffic.sent += sum(line.sent_bytes);
  if (const auto& rows = line.embedding) {
    traffic.pulled += sum(rows->pulled_bytes);
    traffic.pushed += sum(rows->pushed_bytes);
    traffic.needed += sum(rows->needed);
    traffic.cached += sum(rows->cached);
    traffic.prefetched += sum(rows->prefetched);
  }
}

// Of a run that follows no plan, but may do what one in its folder has: seconds of a step.
double predicted_by_folder(const RunDirectory& run, const Job& job, const Metrics& metrics) {
  if (metrics.steps.empty()) return 0;
  const auto workers = std::ssize(metrics.steps.back().batch_split);
  return read_prediction(run, job, workers).value_or(planning::Prediction()).step_seconds;
}

Speed measure_speed(const RunDirectory& run, const Job& job, const Metrics& metrics) {
  Speed speed;
  if (metrics.steps.empty()) return speed;
  for (const StepMetrics& line : metrics.steps) {
    speed.staleness.insert(speed.staleness.end(), line.staleness.begin(), line.staleness.end());
    const bool is_settled = line.step - metrics.steps.front().step >= kSettlingSteps;
    if (is_settled && !line.baseline) speed.add_waits(line);
  }
  TypicalSteps steps = choose_typical_steps(metrics, metrics.steps.back().compute_seconds.size());
  if (steps.own.empty()) std::swap(steps.own, steps.equal);  // it splits equally
  speed.planned = steps.is_planned ? steps.own.back()->predicted_seconds.value_or(0) : 0;
  if (speed.planned == 0) speed.planned = predicted_by_folder(run, job, metrics);
  if (speed.all_seconds == 0) return speed;
  speed.balanced = typical_seconds(steps.own);
  speed.baseline = typical_seconds(steps.equal);
  speed.steps = steps.own.size();
  for (const StepMetrics* line : steps.own) speed.add_traffic(*line);
  return speed;
}

// Rows one after the other, with the job's name; its goals become targets.
struct Table {
  const Job& job;
  std::vector<BenchRow> rows = {};
  void add(const char* metric, double value, const char* unit, bool more, std::optional<double> target = {},
           std::optional<double> limit = {}, std::string note = "") {
    rows.push_back({job.name, metric, value, unit, more, target, limit, std::nullopt, std::move(note)});
  }
};

void list_quality(Table& table, const std::vector<EvaluationMetrics>& lines) {
  EvaluationFigures last;
  for (const EvaluationMetrics& line : lines) {
    const EvaluationFigures& figures = line.evaluation;
    last.loss = figures.loss;
    last.accuracy = figures.accuracy ? figures.accuracy : last.accuracy;
    last.auc = figures.auc ? figures.auc : last.auc;
  }
  if (last.accuracy) {
    table.add("test_accuracy", *last.accuracy, "share", true, goal(table.job.acceptance.test_accuracy));
  } else if (last.loss) {
    table.add("test_loss", *last.loss, "", false);
  }
  if (last.auc) {
    table.add("test_auc", *last.auc, "share", true, goal(table.job.acceptance.test_auc));
  }
}

void list_speed(Table& table, const Speed& speed) {
  if (speed.balanced <= 0) {
    return;
  }
  if (speed.baseline > 0) {
    table.add("step_speedup_over_equal", speed.baseline / speed.balanced, "ratio", true,
              goal(table.job.acceptance.speedup_over_equal),
              speed.limits.empty() ? std::nullopt : std::optional<double>(median(speed.limits)),
              "baseline steps with the equal split, in the same run; limit: compute only, by the fitted costs");
  }
  table.add("step_seconds", speed.balanced, "s", false, std::nullopt, std::nullopt,
            "mean of the steps whose time is in the middle half");
  if (speed.planned > 0) {
    table.add("step_prediction_error", std::abs(speed.balanced / speed.planned - 1), "share", false, std::nullopt,
              std::nullopt, fmt::format("of the {} a step that the plan predicts", format_seconds(speed.planned)));
  }
  table.add("worst_wait_share", std::ranges::max(speed.waits) / speed.all_seconds, "share", false,
            goal(table.job.acceptance.wait_fraction), std::nullopt,
            fmt::format("of all steps after the first {}, stalls included", kSettlingSteps));
}

void list_traffic(Table& table, const Speed& speed) {
  const Speed::Traffic& traffic = speed.traffic;
  const double steps = static_cast<double>(speed.steps);
  if (traffic.sent > 0) {
    table.add("sent_bytes_per_step", traffic.sent / steps, "bytes", false, std::nullopt, std::nullopt,
              "gradients and activations, all workers");
  }
  if (traffic.needed <= 0) {
    return;
  }
  const double asked = traffic.needed - traffic.cached;
  table.add(
      "row_bytes_per_step", traffic.pulled / steps + traffic.pushed / steps, "bytes", false, std::nullopt, std::nullopt,
      fmt::format("all workers, pulled {}, pushed {}; of {:.0f} rows {:.1f} % were cached, of the others {:.1f} % "
                  "asked for ahead",
                  format_bytes(traffic.pulled / steps), format_bytes(traffic.pushed / steps), traffic.needed / steps,
                  100 * traffic.cached / traffic.needed, asked > 0 ? 100 * traffic.prefetched / asked : 0));
  table.add("worst_row_wait_share", std::ranges::max(speed.row_waits) / speed.all_seconds, "share", false, std::nullopt,
            std::nullopt, "of a step, for rows");
}

}  // namespace

std::string compare_with_plan(const RunDirectory& run, const Job& job) {
  const Result<Metrics> metrics = read_metrics(run.metrics_file());
  if (!metrics) return "";
  const Speed speed = measure_speed(run, job, *metrics);
  if (speed.planned <= 0 || speed.balanced <= 0) return "";
  return "a step took " + compare_with_prediction(speed.balanced, speed.planned);
}

Status write_summary(const RunDirectory& run, const Job& job) {
  MOTLEY_ASSIGN(const Metrics metrics, read_metrics(run.metrics_file()));
  const Speed speed = measure_speed(run, job, metrics);
  Table table{job};
  list_quality(table, metrics.evaluations);
  list_speed(table, speed);
  list_traffic(table, speed);
  if (const auto& staleness = speed.staleness; !staleness.empty()) {
    const double mean =
        std::accumulate(staleness.begin(), staleness.end(), 0.0) / static_cast<double>(staleness.size());
    table.add("worst_staleness", static_cast<double>(std::ranges::max(staleness)), "steps", false, std::nullopt,
              goal(static_cast<double>(job.gradient_sync.staleness)), fmt::format("mean {:.2f}", mean));
  }
  std::optional<std::int64_t> not_used_once;
  for (const EventMetrics& line : metrics.events) {
    if (const auto& samples = line.samples_lost_or_duplicated) not_used_once = not_used_once.value_or(0) + *samples;
  }
  if (not_used_once) {
    table.add("samples_not_used_exactly_once", static_cast<double>(*not_used_once), "samples", false, 0.0);
  }
  return write_file(run.summary_file(), to_json(table.rows));
}

}  // namespace motley::train
