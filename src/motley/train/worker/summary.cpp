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

namespace motley::train {
namespace {

constexpr std::int64_t kSettledStep = 20;  // figures of speed are taken after this step

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

// What the lines of steps add up to; "balanced" ones have the split that the run has found.
struct Speed {
  std::vector<double> balanced, baseline;  // seconds of a step
  double balanced_sum = 0;                 // by all plans
  std::vector<double> limits;
  double planned = 0;                    // seconds of a step, by the plan that the run followed last
  std::vector<double> waits, row_waits;  // a rank: sum over steps
  std::vector<std::int64_t> staleness;   // of all ranks, where they may be asynchronous
  // Of all ranks together: sums over the balanced steps.
  struct Traffic {
    double sent = 0, pulled = 0, pushed = 0, needed = 0, cached = 0, prefetched = 0;
  } traffic = {};

  void add(const StepMetrics& line);
};

void Speed::add(const StepMetrics& line) {
  staleness.insert(staleness.end(), line.staleness.begin(), line.staleness.end());
  if (line.step <= kSettledStep) {
    return;
  }
  if (line.baseline) {
    baseline.push_back(line.step_seconds);
    return;
  }
  if (line.mode == "plan" && line.predicted_seconds) {
    if (planned != *line.predicted_seconds) {  // steps of another plan
      balanced.clear();
      traffic = {};
    }
    planned = *line.predicted_seconds;
  }
  balanced.push_back(line.step_seconds);
  balanced_sum += line.step_seconds;
  add_to(waits, line.wait_seconds);
  traffic.sent += sum(line.sent_bytes);
  if (const auto& rows = line.embedding) {
    traffic.pulled += sum(rows->pulled_bytes);
    traffic.pushed += sum(rows->pushed_bytes);
    traffic.needed += sum(rows->needed);
    traffic.cached += sum(rows->cached);
    traffic.prefetched += sum(rows->prefetched);
    add_to(row_waits, rows->wait_seconds);
  }
  if (line.split.bound_seconds.value_or(0) > 0) {
    limits.push_back(line.split.equal_seconds.value_or(0) / *line.split.bound_seconds);
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
  for (const StepMetrics& line : metrics.steps) speed.add(line);
  if (speed.planned == 0) speed.planned = predicted_by_folder(run, job, metrics);
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
  if (speed.balanced.empty()) {
    return;
  }
  const double seconds = median(speed.balanced);
  if (!speed.baseline.empty()) {
    table.add("step_speedup_over_equal", median(speed.baseline) / seconds, "ratio", true,
              goal(table.job.acceptance.speedup_over_equal),
              speed.limits.empty() ? std::nullopt : std::optional<double>(median(speed.limits)),
              "baseline steps with the equal split, in the same run; limit: compute only, by the fitted costs");
  }
  table.add("step_seconds", seconds, "s", false, std::nullopt, std::nullopt, "median");
  if (speed.planned > 0) {
    table.add("step_prediction_error", std::abs(speed.planned / seconds - 1), "share", false, std::nullopt,
              std::nullopt, fmt::format("the plan predicts {} a step", format_seconds(speed.planned)));
  }
  table.add("worst_wait_share", std::ranges::max(speed.waits) / speed.balanced_sum, "share", false,
            goal(table.job.acceptance.wait_fraction), std::nullopt, fmt::format("after step {}", kSettledStep));
}

void list_traffic(Table& table, const Speed& speed) {
  const Speed::Traffic& traffic = speed.traffic;
  const double steps = static_cast<double>(speed.balanced.size());
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
  table.add("worst_row_wait_share", std::ranges::max(speed.row_waits) / speed.balanced_sum, "share", false,
            std::nullopt, std::nullopt, "of a step, for rows");
}

}  // namespace

std::string compare_with_plan(const RunDirectory& run, const Job& job) {
  const Result<Metrics> metrics = read_metrics(run.metrics_file());
  if (!metrics) return "";
  const Speed speed = measure_speed(run, job, *metrics);
  if (speed.planned <= 0 || speed.balanced.empty()) return "";
  return "a step took " + compare_with_prediction(median(speed.balanced), speed.planned);
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
