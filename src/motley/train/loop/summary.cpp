#include "motley/train/loop/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
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

// Of all ranks together: sums over the balanced steps.
struct Traffic {
  double sent = 0, pulled = 0, pushed = 0, needed = 0, cached = 0, prefetched = 0;
};

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// By rank; the ranks of the last step remain.
void add_to(std::vector<double>& sums, const std::vector<double>& values) {
  sums.resize(values.size());
  std::ranges::transform(sums, values, sums.begin(), std::plus());
}

}  // namespace

std::vector<BenchRow> summarise(const Metrics& metrics, const Job& job) {
  std::vector<double> balanced;
  std::vector<double> baseline;
  std::vector<double> limits;
  std::vector<double> waits;  // a rank: sum over steps
  double balanced_sum = 0;
  double planned = 0;                   // seconds of a step, by the plan that the run followed last
  std::vector<std::int64_t> staleness;  // of all ranks, where they may be at different steps
  Traffic traffic;
  std::vector<double> rows_waits;  // a rank: sum over steps
  std::optional<double> accuracy, auc, loss;
  for (const EvaluationMetrics& line : metrics.evaluations) {
    loss = line.evaluation.loss;
    accuracy = line.evaluation.accuracy ? line.evaluation.accuracy : accuracy;
    auc = line.evaluation.auc ? line.evaluation.auc : auc;
  }
  std::optional<std::int64_t> not_used_once;
  for (const EventMetrics& line : metrics.events) {
    if (line.samples_lost_or_duplicated) {
      not_used_once = not_used_once.value_or(0) + *line.samples_lost_or_duplicated;
    }
  }
  for (const StepMetrics& line : metrics.steps) {
    staleness.insert(staleness.end(), line.staleness.begin(), line.staleness.end());
    if (line.step <= kSettledStep) {
      continue;
    }
    if (line.baseline) {
      baseline.push_back(line.step_seconds);
      continue;
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
      add_to(rows_waits, rows->wait_seconds);
    }
    if (line.split.bound_seconds.value_or(0) > 0) {
      limits.push_back(line.split.equal_seconds.value_or(0) / *line.split.bound_seconds);
    }
  }

  std::vector<BenchRow> rows;
  const auto add = [&](const char* metric, double value, const char* unit, bool more, std::optional<double> target,
                       std::optional<double> limit, std::string note) {
    rows.push_back({job.name, metric, value, unit, more, target, limit, std::nullopt, std::move(note)});
  };
  if (accuracy) {
    add("test_accuracy", *accuracy, "share", true, goal(job.acceptance.test_accuracy), std::nullopt, "");
  } else if (loss) {
    add("test_loss", *loss, "", false, std::nullopt, std::nullopt, "");
  }
  if (auc) {
    add("test_auc", *auc, "share", true, goal(job.acceptance.test_auc), std::nullopt, "");
  }
  if (!balanced.empty() && !baseline.empty()) {
    add("step_speedup_over_equal", median(baseline) / median(balanced), "ratio", true,
        goal(job.acceptance.speedup_over_equal), limits.empty() ? std::nullopt : std::optional<double>(median(limits)),
        "baseline steps with the equal split, in the same run; limit: compute only, by the fitted costs");
  }
  if (!balanced.empty()) {
    add("step_seconds", median(balanced), "s", false, std::nullopt, std::nullopt, "median");
    if (planned > 0) {
      add("step_prediction_error", std::abs(planned / median(balanced) - 1), "share", false, std::nullopt, std::nullopt,
          fmt::format("the plan predicts {} a step", format_seconds(planned)));
    }
    add("worst_wait_share", *std::max_element(waits.begin(), waits.end()) / balanced_sum, "share", false,
        goal(job.acceptance.wait_fraction), std::nullopt, fmt::format("after step {}", kSettledStep));
  }
  const double steps = static_cast<double>(balanced.size());
  if (traffic.sent > 0) {
    add("sent_bytes_per_step", traffic.sent / steps, "bytes", false, std::nullopt, std::nullopt,
        "gradients and activations, all workers");
  }
  if (traffic.needed > 0) {
    const double asked = traffic.needed - traffic.cached;
    add("row_bytes_per_step", traffic.pulled / steps + traffic.pushed / steps, "bytes", false, std::nullopt,
        std::nullopt,
        fmt::format("all workers, pulled {}, pushed {}; of {:.0f} rows {:.1f} % were cached, of the others {:.1f} % "
                    "asked for ahead",
                    format_bytes(traffic.pulled / steps), format_bytes(traffic.pushed / steps), traffic.needed / steps,
                    100 * traffic.cached / traffic.needed, asked > 0 ? 100 * traffic.prefetched / asked : 0));
    add("worst_row_wait_share", std::ranges::max(rows_waits) / balanced_sum, "share", false, std::nullopt, std::nullopt,
        "of a step, for rows");
  }
  if (!staleness.empty()) {
    add("worst_staleness", static_cast<double>(std::ranges::max(staleness)), "steps", false, std::nullopt,
        job.gradient_sync.staleness > 0 ? std::optional<double>(static_cast<double>(job.gradient_sync.staleness))
                                        : std::nullopt,
        fmt::format("mean {:.2f}",
                    std::accumulate(staleness.begin(), staleness.end(), 0.0) / static_cast<double>(staleness.size())));
  }
  if (not_used_once) {
    add("samples_not_used_exactly_once", static_cast<double>(*not_used_once), "samples", false, 0.0, std::nullopt, "");
  }
  return rows;
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
