#include "motley/train/loop/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

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

}  // namespace

std::vector<BenchRow> summarise(std::string_view metrics, const Job& job) {
  std::vector<double> balanced;
  std::vector<double> baseline;
  std::vector<double> limits;
  std::vector<double> waits;  // a rank: sum over steps
  double balanced_sum = 0;
  double planned = 0;                     // seconds of a step, by the plan that the run followed last
  std::vector<double> staleness;          // of all ranks, where they may be at different steps
  std::map<std::string, double> traffic;  // of all ranks together: sums over the balanced steps
  std::vector<double> rows_waits;         // a rank: sum over steps
  std::optional<double> accuracy;
  std::optional<double> auc;
  std::optional<double> loss;
  std::int64_t not_used_once = 0;
  bool audited = false;
  std::istringstream lines{std::string(metrics)};
  for (std::string text; std::getline(lines, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_discarded()) {
      continue;
    }
    if (line.contains("evaluation")) {
      loss = line["evaluation"].value("loss", 0.0);
      if (line["evaluation"].contains("accuracy")) {
        accuracy = line["evaluation"].value("accuracy", 0.0);
      }
      if (const auto found = line["evaluation"].find("auc"); found != line["evaluation"].end() && found->is_number()) {
        auc = found->get<double>();
      }
    }
    if (line.contains("samples_lost_or_duplicated")) {
      audited = true;
      not_used_once += line["samples_lost_or_duplicated"].get<std::int64_t>();
    }
    for (const auto& steps : line.value("staleness", nlohmann::json::array())) {
      staleness.push_back(steps.get<double>());
    }
    if (!line.contains("step_seconds") || line.value("step", std::int64_t{0}) <= kSettledStep) {
      continue;
    }
    const double seconds = line.value("step_seconds", 0.0);
    if (line.value("baseline", false)) {
      baseline.push_back(seconds);
      continue;
    }
    if (const auto found = line.find("predicted_seconds"); line.value("mode", "") == "plan" && found != line.end()) {
      if (planned != *found) {  // steps of another plan
        balanced.clear();
        traffic.clear();
      }
      planned = *found;
    }
    balanced.push_back(seconds);
    balanced_sum += seconds;
    waits.resize(line["wait_seconds"].size());
    for (std::size_t rank = 0; rank < waits.size(); ++rank) {
      waits[rank] += line["wait_seconds"][rank].get<double>();
    }
    const auto add_up = [&](const nlohmann::json& of, const char* key) {
      for (const auto& value : of.value(key, nlohmann::json::array())) traffic[key] += value.get<double>();
    };
    add_up(line, "sent_bytes");
    if (const auto rows = line.find("embedding"); rows != line.end()) {
      for (const char* key : {"pulled_bytes", "pushed_bytes", "needed", "cached", "prefetched"}) add_up(*rows, key);
      rows_waits.resize((*rows)["wait_seconds"].size());
      for (std::size_t rank = 0; rank < rows_waits.size(); ++rank) {
        rows_waits[rank] += (*rows)["wait_seconds"][rank].get<double>();
      }
    }
    if (line.value("bound_seconds", 0.0) > 0) {
      limits.push_back(line.value("equal_seconds", 0.0) / line.value("bound_seconds", 1.0));
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
  const auto each_step = [&](const char* key) { return traffic[key] / static_cast<double>(balanced.size()); };
  if (traffic["sent_bytes"] > 0) {
    add("sent_bytes_per_step", each_step("sent_bytes"), "bytes", false, std::nullopt, std::nullopt,
        "gradients and activations, all workers");
  }
  if (traffic["needed"] > 0) {
    const double asked = traffic["needed"] - traffic["cached"];
    add("row_bytes_per_step", each_step("pulled_bytes") + each_step("pushed_bytes"), "bytes", false, std::nullopt,
        std::nullopt,
        fmt::format("all workers, pulled {}, pushed {}; of {:.0f} rows {:.1f} % were cached, of the others {:.1f} % "
                    "asked for ahead",
                    format_bytes(each_step("pulled_bytes")), format_bytes(each_step("pushed_bytes")),
                    each_step("needed"), 100 * traffic["cached"] / traffic["needed"],
                    asked > 0 ? 100 * traffic["prefetched"] / asked : 0));
    add("worst_row_wait_share", std::ranges::max(rows_waits) / balanced_sum, "share", false, std::nullopt, std::nullopt,
        "of a step, for rows");
  }
  if (!staleness.empty()) {
    add("worst_staleness", std::ranges::max(staleness), "steps", false, std::nullopt,
        job.gradient_sync.staleness > 0 ? std::optional<double>(static_cast<double>(job.gradient_sync.staleness))
                                        : std::nullopt,
        fmt::format("mean {:.2f}",
                    std::accumulate(staleness.begin(), staleness.end(), 0.0) / static_cast<double>(staleness.size())));
  }
  if (audited) {
    add("samples_not_used_exactly_once", static_cast<double>(not_used_once), "samples", false, 0.0, std::nullopt, "");
  }
  return rows;
}

Status write_summary(const RunDirectory& run, const Job& job) {
  MOTLEY_ASSIGN(const std::string metrics, read_file(run.metrics_file()));
  const std::vector<BenchRow> rows = summarise(metrics, job);
  MOTLEY_TRY(write_file(run.summary_file(), to_json(rows)));
  std::printf("%s", to_table(rows).c_str());
  std::fflush(stdout);
  return {};
}

}  // namespace motley::train
