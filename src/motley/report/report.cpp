#include "motley/report/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/report/figures.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/plan_timeline.h"

namespace motley::report {
namespace {

using report::escape;
using report::Tone;

constexpr std::size_t kMaxLogRows = 300;

std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * fraction);
}

std::string worker_name(const Run& run, std::size_t i) {
  return run.file.workers[i].name.empty() ? fmt::format("rank {}", run.file.workers[i].rank) : run.file.workers[i].name;
}

const BenchRow* find_row(const Run& run, const std::string& metric) {
  const auto found = std::find_if(run.summary.begin(), run.summary.end(), [&](const BenchRow& row) {
    return row.metric == metric && std::isfinite(row.value);
  });
  return found == run.summary.end() ? nullptr : &*found;
}

std::string header(const Run& run) {
  const bool done = run.file.finished && run.file.exit == "done";
  const std::string state = !run.file.finished                   ? "did not finish"
                            : run.file.exit.value_or("").empty() ? "finished"
                                                                 : *run.file.exit;
  std::vector<std::string> facts;
  facts.push_back(fmt::format("{} worker{}", run.file.workers.size(), run.file.workers.size() == 1 ? "" : "s"));
  if (run.prediction) {
    const planning::Plan& plan = run.prediction->plan;
    facts.push_back(fmt::format("planned: {} stage{}, {} micro-batch{}, {}", plan.stages.size(),
                                plan.stages.size() == 1 ? "" : "s", plan.micro_batches,
                                plan.micro_batches == 1 ? "" : "es", planning::to_string(plan.schedule)));
  }
  if (!run.file.gradient_sync.empty()) {
    facts.push_back("gradient synchronisation: " + run.file.gradient_sync);
  }
  if (!run.metrics.steps.empty()) {
    const StepMetrics& last = run.metrics.steps.back();
    facts.push_back(fmt::format("{} steps, {} epoch{}", last.step, last.epoch + 1, last.epoch == 0 ? "" : "s"));
    facts.push_back(format_seconds(last.time));
  }
  if (run.file.started > 0) {
    facts.push_back(
        fmt::format("started {:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(run.file.started))));
  }
  if (!run.file.machine.empty()) {
    facts.push_back(run.file.machine);
  }
  std::string html = fmt::format("<header><h1>Run {}<span class=\"badge {}\">{}</span></h1>\n<div class=\"facts\">",
                                 escape(run.name), done ? "good" : "bad", escape(state));
  for (const std::string& fact : facts) {
    html += fmt::format("<span>{}</span>", escape(fact));
  }
  return html + "</div></header>\n";
}

std::string notices(const Run& run) {
  std::string html;
  if (run.file.error) {
    html += report::notice("Error", escape(*run.file.error), Tone::kBad);
  }
  if (run.metrics.is_torn) {
    html += report::notice("Cut short",
                           "The last line of metrics.jsonl is incomplete, as a killed run leaves it; it was "
                           "left out.");
  }
  std::string emulated;
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    if (run.file.workers[i].emulated) {
      emulated += fmt::format("{}<b>{}</b> ({})", emulated.empty() ? "" : ", ", escape(worker_name(run, i)),
                              escape(*run.file.workers[i].emulated));
    }
  }
  if (!emulated.empty()) {
    html += report::notice(
        "Emulated", "The speed of " + emulated +
                        " was emulated: after its real computation a worker sleeps until the time that the slower "
                        "device would have taken. Times below are those of the emulated devices.");
  }
  return html;
}

// A headline figure: the summary's row where there is one, else what the steps give so far.
std::string headline(const Run& run, const std::string& metric, const std::string& label,
                     std::optional<double> measured, std::optional<double> limit, const std::string& what_limit,
                     const std::string& unknown, std::string (*format)(double)) {
  const BenchRow* row = find_row(run, metric);
  if (row == nullptr && !measured) {
    return report::tile(label, "–", unknown, Tone::kPlain);
  }
  std::vector<std::string> remarks;
  Tone tone = Tone::kPlain;
  if (row != nullptr) {
    if (row->target) {
      remarks.push_back(fmt::format("target {} {}", row->more_is_better ? "≥" : "≤", format(*row->target)));
      tone = row->met() ? Tone::kGood : Tone::kBad;
    }
    limit = row->limit ? row->limit : limit;
  } else {
    remarks.push_back("from the steps so far");
  }
  if (limit && !what_limit.empty()) {
    remarks.push_back(fmt::format("{} {}", what_limit, format(*limit)));
  }
  return report::tile(label, format(row != nullptr ? row->value : *measured),
                      fmt::format("{}", fmt::join(remarks, " · ")), tone);
}

const char* own_heading(const Figures& figures) {
  return figures.is_planned ? "As planned" : "As Motley split it";
}

// A run that has moved to another plan is no longer what its first one predicted.
bool keeps_its_plan(const Run& run) {
  return std::ranges::none_of(run.metrics.events, [](const EventMetrics& event) { return event.event == "moved"; });
}

// The step as it was, beside what the plan said.
std::string planned_step(const Run& run, const Figures& figures) {
  const bool is_predicted = run.prediction && keeps_its_plan(run);
  const double predicted = is_predicted ? run.prediction->plan.predicted.step_seconds : 0;
  if (!figures.balanced) {
    return report::tile("Step", "–", "needs measured steps", Tone::kPlain);
  }
  const double measured = figures.balanced->seconds;
  return report::tile("Step", format_seconds(measured),
                      predicted > 0         ? fmt::format("predicted {}, {:+.1f} %", format_seconds(predicted),
                                                          100 * (measured / predicted - 1))
                      : keeps_its_plan(run) ? "nothing was predicted"
                                            : "of all plans that the run has followed",
                      Tone::kPlain);
}

// What an epoch costs at the steps' typical pace, where the cluster file has prices.
std::string cost(const Run& run, const Figures& figures) {
  const auto& basis = figures.balanced ? figures.balanced : figures.equal;
  if (!run.file.price_per_hour || !basis || run.file.global_batch_size <= 0 || run.file.training_samples == 0) {
    return "";
  }
  const double hours = basis->seconds * static_cast<double>(run.file.training_samples) /
                       static_cast<double>(run.file.global_batch_size) / 3600;
  return report::tile("Cost of an epoch", fmt::format("{:.3g}", *run.file.price_per_hour * hours),
                      fmt::format("{:.3g} an hour for all devices, by the cluster file", *run.file.price_per_hour),
                      Tone::kPlain);
}

std::string headlines(const Run& run, const Figures& figures) {
  std::optional<double> accuracy, auc;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    accuracy = line.evaluation.accuracy ? line.evaluation.accuracy : accuracy;
    auc = line.evaluation.auc ? line.evaluation.auc : auc;
  }
  const auto times = [](double value) { return fmt::format("{:.2f}×", value); };
  const auto share = [](double value) { return percent(value); };
  const auto area = [](double value) { return fmt::format("{:.4f}", value); };
  const auto count = [](double value) { return fmt::format("{:.0f}", value); };
  return "<div class=\"tiles\">\n" +
         (auc ? headline(run, "test_auc", "Test AUC", auc, {}, "", "", area)
              : headline(run, "test_accuracy", "Test accuracy", accuracy, {}, "", "not evaluated", share)) +
         (figures.is_planned ? planned_step(run, figures)
                             : headline(run, "step_speedup_over_equal", "Speed-up over equal split", figures.speedup(),
                                        figures.possible_speedup(), "optimum", "needs steps of both splits", times)) +
         headline(run, "worst_wait_share", "Largest wait fraction of step time", figures.max_wait_fraction(), {}, "",
                  "needs measured steps", share) +
         headline(run, "samples_not_used_exactly_once", "Samples lost or duplicated", {}, {}, "",
                  "known when the run ends", count) +
         cost(run, figures) + "</div>\n";
}

std::string learning(const Run& run) {
  report::Series loss{"training, a step", 0, report::LineStyle::kFaint}, smooth{"training, smoothed", 0};
  report::Series test_loss{"test", 1, report::LineStyle::kMarked};
  report::Series accuracy{"training, a step", 0, report::LineStyle::kFaint}, smooth_accuracy{"training, smoothed", 0};
  report::Series test_accuracy{"test", 1, report::LineStyle::kMarked};
  report::Series test_auc{"test", 1, report::LineStyle::kMarked};
  // An exponential mean over about a fiftieth of the run, but at least ten steps; corrected for its start.
  const double keep = 1 - 1 / std::max(10.0, static_cast<double>(run.metrics.steps.size()) / 50);
  const auto add = [keep](report::Series& raw, report::Series& mean, double& sum, double& weight, double x, double y) {
    raw.x.push_back(x);
    raw.y.push_back(y);
    if (std::isfinite(y)) {
      sum = keep * sum + (1 - keep) * y;
      weight = keep * weight + (1 - keep);
    }
    mean.x.push_back(x);
    mean.y.push_back(weight > 0 ? sum / weight : y);
  };
  double loss_sum = 0, loss_weight = 0, accuracy_sum = 0, accuracy_weight = 0;
  for (const StepMetrics& step : run.metrics.steps) {
    const double x = static_cast<double>(step.step);
    add(loss, smooth, loss_sum, loss_weight, x, step.loss);
    if (step.accuracy) {
      add(accuracy, smooth_accuracy, accuracy_sum, accuracy_weight, x, *step.accuracy);
    }
  }
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    for (const auto& [series, value] : {std::pair(&test_loss, line.evaluation.loss),
                                        {&test_accuracy, line.evaluation.accuracy},
                                        {&test_auc, line.evaluation.auc}}) {
      if (value) {
        series->x.push_back(static_cast<double>(line.step));
        series->y.push_back(*value);
      }
    }
  }
  const auto chart = [](const char* title, const char* y, bool fraction, std::vector<report::Series> all) {
    std::erase_if(all, [](const report::Series& series) { return series.x.empty(); });
    std::string summary = fmt::format("{} by step.", y);
    for (const report::Series& series : all) {
      summary += fmt::format(" {}: from {:.3g} to {:.3g}.", series.name, series.y.front(), series.y.back());
    }
    return report::card(title, "",
                        report::line_chart({.title = title,
                                            .summary = summary,
                                            .x_label = "step",
                                            .y_label = y,
                                            .series = std::move(all),
                                            .percent = fraction}));
  };
  std::string html = chart("Loss", "loss", false, {loss, smooth, test_loss});
  if (!accuracy.x.empty() || !test_accuracy.x.empty()) {
    html += chart("Accuracy", "accuracy", true, {accuracy, smooth_accuracy, test_accuracy});
  }
  if (test_auc.x.size() > 1) {
    html += chart("Area under the ROC curve", "AUC", false, {test_auc});
  }
  return html;
}

std::string bars(const Run& run, const Figures& figures) {
  double extent = 0;
  for (const auto* step : {&figures.equal, &figures.balanced, &figures.optimum}) {
    if (*step) {
      extent = std::max(extent, (*step)->seconds);
      for (const Phases& worker : (*step)->workers) {
        extent = std::max(extent, worker.total());
      }
    }
  }
  if (extent <= 0) {
    return "";
  }
  const auto group = [&](const char* heading, const std::string& remark, const TypicalStep& step) {
    std::vector<report::BarRow> rows;
    for (std::size_t i = 0; i < step.workers.size(); ++i) {
      const Phases& worker = step.workers[i];
      std::vector<report::Segment> segments;
      double at = 0;
      for (const auto& [kind, seconds] : {std::pair{"load", worker.load},
                                          {"compute", worker.compute},
                                          {"gradient_sync", worker.gradient_sync},
                                          {"wait", worker.wait}}) {
        segments.push_back({at, at + seconds, kind, fmt::format("{}: {}", kind, format_seconds(seconds))});
        at += seconds;
      }
      rows.push_back({worker_name(run, i),
                      report::segment_bar(
                          segments, extent,
                          fmt::format("{}: load {}, compute {}, gradient synchronisation {}, wait {}",
                                      worker_name(run, i), format_seconds(worker.load), format_seconds(worker.compute),
                                      format_seconds(worker.gradient_sync), format_seconds(worker.wait))),
                      fmt::format("{:.0f} samples", worker.samples)});
    }
    return report::bar_group(heading, fmt::format("{} a step, {}", format_seconds(step.seconds), remark), rows);
  };
  std::string html;
  if (figures.equal) {
    html += group(
        "Equal split",
        fmt::format("median of {} {}", figures.equal->steps, figures.balanced ? "baseline steps in this run" : "steps"),
        *figures.equal);
  }
  if (figures.balanced) {
    html += group(own_heading(figures), fmt::format("median of {} steps", figures.balanced->steps), *figures.balanced);
  }
  if (figures.optimum) {
    html += group("Optimum", "if each worker keeps the speed it showed and nobody waits", *figures.optimum);
  }
  html += report::legend({{"load", "load"},
                          {"compute", "compute"},
                          {"gradient_sync", "gradient synchronisation"},
                          {"wait", "wait for others"}});
  return report::card("Who did what in a step", "One bar a worker, all on the same scale of time.", html, true);
}

// Each worker's part of the global batch, standing on each other. Only steps where a share changes are kept, and of
// those evenly chosen ones where there are too many.
std::string shares(const Run& run) {
  std::vector<const StepMetrics*> kept;
  const StepMetrics* last = nullptr;
  for (const StepMetrics& step : run.metrics.steps) {
    if (!step.baseline && step.samples.size() == run.file.workers.size()) {
      if (kept.empty() || kept.back()->samples != step.samples) {
        kept.push_back(&step);
      }
      last = &step;
    }
  }
  if (last == nullptr || run.file.workers.size() < 2 || last->mode == "plan") {
    return "";
  }
  const std::size_t stride = kept.size() / report::kMaxPoints + 1;
  std::vector<report::Series> series(run.file.workers.size());
  const auto add = [&](const StepMetrics& step) {
    double sum = 0;
    for (const std::int64_t samples : step.samples) {
      sum += static_cast<double>(samples);
    }
    for (std::size_t i = 0; sum > 0 && i < series.size(); ++i) {
      series[i].x.push_back(static_cast<double>(step.step));
      series[i].y.push_back(static_cast<double>(step.samples[i]) / sum);
    }
  };
  for (std::size_t i = 0; i < kept.size(); i += stride) {
    add(*kept[i]);
  }
  if (kept.back() != last) {
    add(*last);
  }
  std::string summary = "Fraction of the global batch by step; at the end:";
  for (std::size_t i = 0; i < series.size(); ++i) {
    series[i].name = worker_name(run, i);
    series[i].color = static_cast<int>(i);
    series[i].style = report::LineStyle::kArea;
    summary += fmt::format(" {} {}", series[i].name, series[i].y.empty() ? "none" : percent(series[i].y.back()));
  }
  return report::card("Each worker's share of the batch", "Baseline steps with the equal split are left out.",
                      report::line_chart({.title = "Each worker's share of the batch",
                                          .summary = summary,
                                          .x_label = "step",
                                          .y_label = "share",
                                          .series = std::move(series),
                                          .stacked = true,
                                          .percent = true}));
}

std::string step_times(const Run& run, const Figures& figures) {
  report::Series measured{"measured", 0}, predicted{"predicted", 2, report::LineStyle::kDashed};
  report::Series baseline{"baseline (equal split)", 1, report::LineStyle::kMarks};
  for (const StepMetrics& step : run.metrics.steps) {
    const double x = static_cast<double>(step.step);
    report::Series& series = step.baseline ? baseline : measured;
    series.x.push_back(x);
    series.y.push_back(step.step_seconds * 1e3);
    if (step.predicted_seconds && !step.baseline) {
      predicted.x.push_back(x);
      predicted.y.push_back(*step.predicted_seconds * 1e3);
    }
  }
  std::vector<report::Series> all = {measured, predicted, baseline};
  std::erase_if(all, [](const report::Series& series) { return series.x.empty(); });
  if (all.empty()) {
    return "";
  }
  // One stall, such as for a checkpoint, must not flatten all the rest.
  double slowest = 0;
  for (const auto* step : {&figures.balanced, &figures.equal}) {
    slowest = *step ? std::max(slowest, (*step)->seconds * 1e3) : slowest;
  }
  double highest = 0;
  for (const report::Series& series : all) {
    highest = std::max(highest, *std::max_element(series.y.begin(), series.y.end()));
  }
  report::LineChart chart{.title = "Step time", .x_label = "step", .y_label = "milliseconds", .series = std::move(all)};
  chart.from_zero = true;
  std::string hint;
  if (slowest > 0 && highest > 2 * slowest) {
    const double unit = std::pow(10, std::floor(std::log10(slowest)));
    chart.y_limit = std::ceil(2 * slowest / unit) * unit;
    hint = fmt::format("The longest step took {} and reaches beyond the chart.", format_seconds(highest / 1e3));
  }
  chart.summary = "Measured and predicted step time by step, baseline steps with the equal split marked.";
  return report::card("Step time", hint, report::line_chart(chart));
}

// What all ranks did in one recorded step with the run's own split and, on the same scale, in a baseline step.
std::string timeline(const Run& run, const Figures& figures) {
  std::set<std::int64_t> recorded;
  for (const TraceSpan& span : run.trace) {
    recorded.insert(span.step);
  }
  const StepMetrics* own = nullptr;
  const StepMetrics* baseline = nullptr;
  for (const StepMetrics& step : run.metrics.steps) {
    if (recorded.count(step.step) != 0) {
      (step.baseline || step.mode == "equal" ? baseline : own) = &step;
    }
  }
  struct Window {
    std::string heading;
    std::int64_t step;
    double begin = 1e300, end = 0;
  };
  std::vector<Window> windows;
  if (baseline != nullptr) {
    windows.push_back({"Equal split", baseline->step});
  }
  if (own != nullptr) {
    windows.push_back({own_heading(figures), own->step});
  }
  const std::set<std::string> shown = {"load", "forward", "backward", "gradient_sync", "wait", "optimizer", "emulated"};
  double extent = 0;
  for (Window& window : windows) {
    for (const TraceSpan& span : run.trace) {
      if (span.step == window.step && shown.count(span.phase) != 0) {
        window.begin = std::min(window.begin, span.begin);
        window.end = std::max(window.end, span.end);
      }
    }
    extent = std::max(extent, window.end - window.begin);
  }
  if (extent <= 0) {
    return "";
  }
  std::string html;
  for (const Window& window : windows) {
    std::vector<report::BarRow> rows;
    for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
      std::vector<report::Segment> segments;
      for (const TraceSpan& span : run.trace) {
        if (span.rank == run.file.workers[i].rank && span.step == window.step && shown.count(span.phase) != 0) {
          segments.push_back({span.begin - window.begin, span.end - window.begin, span.phase,
                              fmt::format("{}: {}", span.phase, format_seconds(span.end - span.begin)),
                              span.phase == "gradient_sync" || span.phase == "wait"});
        }
      }
      // Emulated time lies inside forward and backward: what is longer is drawn first.
      std::stable_sort(segments.begin(), segments.end(), [](const report::Segment& a, const report::Segment& b) {
        return a.end - a.begin > b.end - b.begin;
      });
      rows.push_back(
          {worker_name(run, i),
           report::segment_bar(segments, extent, fmt::format("{}, step {}", worker_name(run, i), window.step), 2), ""});
    }
    html += report::bar_group(window.heading,
                              fmt::format("step {}, {}", window.step, format_seconds(window.end - window.begin)), rows);
  }
  html += report::legend({{"load", "load"},
                          {"forward", "forward"},
                          {"backward", "backward"},
                          {"emulated", "emulated slowness"},
                          {"optimizer", "optimizer"},
                          {"gradient_sync", "gradient synchronisation"},
                          {"wait", "wait for others"}});
  return report::card(
      "One step as it happened",
      "Upper track: computing. Lower track: gradient synchronisation and waiting. All recorded steps are in "
      "<code>timeline.json</code>, which Perfetto and chrome://tracing open.",
      html, true);
}

// The step as the plan's replay has it, to be held against the one that happened.
std::string predicted_timeline(const Run& run) {
  if (!run.prediction || !keeps_its_plan(run)) {
    return "";
  }
  if (!run.prediction->timeline) {
    return report::card("One step as predicted", "",
                        fmt::format("<p>Not drawn: {}.</p>\n", escape(run.prediction->why_not)), true);
  }
  return plan_timeline(*run.prediction->timeline, run.prediction->plan);
}

std::string decisions(const Run& run) {
  std::vector<std::vector<std::string>> rows;
  std::size_t count = 0;
  for (auto step = run.metrics.steps.rbegin(); step != run.metrics.steps.rend(); ++step) {
    if (step->decision && ++count <= kMaxLogRows) {
      rows.push_back({fmt::format("{}", step->step), escape(*step->decision),
                      escape(fmt::format("{}", fmt::join(step->samples, " · ")))});
    }
  }
  if (rows.empty()) {
    return "";
  }
  return report::card(
      "Why shares moved", count > kMaxLogRows ? fmt::format("The last {} of {}.", kMaxLogRows, count) : "Latest first.",
      "<div class=\"log\" tabindex=\"0\">" + report::table({"step", "decision", "samples"}, rows, {0}) + "</div>\n");
}

std::string workers(const Run& run, const Figures& figures) {
  std::vector<std::vector<std::string>> rows;
  const auto& basis = figures.balanced ? figures.balanced : figures.equal;
  // The replay's devices are in the order of the ranks: by stage, and by replica in it.
  const bool is_predicted = run.prediction && run.prediction->timeline && keeps_its_plan(run) &&
                            run.prediction->timeline->devices.size() == run.file.workers.size();
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const train::RunWorker& worker = run.file.workers[i];
    std::vector<std::string> row = {fmt::format("{}", worker.rank),
                                    escape(worker.name),
                                    escape(worker.device),
                                    worker.emulated ? escape(*worker.emulated) : "no",
                                    "–",
                                    "–",
                                    "–",
                                    "–"};
    if (basis) {
      const Phases& phases = basis->workers[i];
      row[4] = fmt::format("{:.0f}", phases.samples);
      row[5] = phases.samples > 0 ? escape(format_seconds(phases.busy() / phases.samples)) : "–";
      row[6] = basis->seconds > 0 ? percent(phases.wait / basis->seconds) : "–";
      row[7] = basis->seconds > 0 ? percent(1 - phases.busy() / basis->seconds) : "–";
    }
    if (is_predicted) {
      row.push_back(percent(run.prediction->timeline->devices[i].bubble_fraction));
    }
    rows.push_back(std::move(row));
  }
  std::vector<std::string> headings = {"rank",    "name",           "device", "emulated",
                                       "samples", "a sample takes", "waits",  "idle"};
  if (is_predicted) {
    headings.emplace_back("idle, predicted");
  }
  return report::card("Workers", "Idle is all of a step in which a device does not compute: waiting and exchanging.",
                      report::table(headings, rows, {0, 4, 5, 6, 7, 8}), is_predicted);
}

// Nothing where nothing went over a network and no rows were looked up.
std::string traffic(const Run& run, const Figures& figures) {
  const auto& basis = figures.balanced ? figures.balanced : figures.equal;
  if (!basis) return "";
  const auto any = [&](double Traffic::* value) {
    return std::ranges::any_of(basis->traffic, [&](const Traffic& worker) { return worker.*value > 0; });
  };
  const bool looks_up = any(&Traffic::rows_needed);
  if (!looks_up && !any(&Traffic::sent)) return "";
  const auto bytes = [](double value) { return escape(format_bytes(value)); };
  const auto seconds = [](double value) { return escape(format_seconds(value)); };
  const auto share = [](double part, double of) { return of > 0 ? percent(part / of) : "–"; };
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const Phases& phases = basis->workers[i];
    const Traffic& worker = basis->traffic[i];
    rows.push_back({escape(worker_name(run, i)), bytes(worker.sent), seconds(phases.gradient_sync),
                    seconds(std::max(0.0, phases.wait - worker.rows_wait))});
    if (looks_up) {
      const double asked = worker.rows_needed - worker.rows_cached;
      for (const std::string& cell :
           {bytes(worker.pulled), bytes(worker.pushed), seconds(worker.rows_wait),
            fmt::format("{:.0f}", worker.rows_needed), share(worker.rows_cached, worker.rows_needed),
            share(worker.rows_prefetched, asked)}) {
        rows.back().push_back(cell);
      }
    }
  }
  std::vector<std::string> headings = {"worker", "sent to others", "gradient synchronisation", "waits for others"};
  if (looks_up) {
    for (const char* heading :
         {"rows pulled", "rows pushed", "waits for rows", "rows needed", "of these cached", "of the others ahead"}) {
      headings.emplace_back(heading);
    }
  }
  return report::card("Where bytes and waits go",
                      looks_up
                          ? "A typical step. Sent to others: gradients and activations over the network; rows: what "
                            "requests, answers and gradients take on the wire."
                          : "A typical step. Sent: gradients and activations over the network.",
                      report::table(headings, rows, {1, 2, 3, 4, 5, 6, 7, 8, 9}), looks_up);
}

std::string summary(const Run& run) {
  if (run.summary.empty()) {
    return "";
  }
  const auto cell = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? fmt::format("{:.4g}", *value) : "–";
  };
  std::vector<std::vector<std::string>> rows;
  for (const BenchRow& row : run.summary) {
    rows.push_back({escape(row.name), escape(row.metric), cell(row.value), escape(row.unit),
                    row.target ? fmt::format("{} {:.4g}", row.more_is_better ? "≥" : "≤", *row.target) : "–",
                    cell(row.limit), cell(row.peer),
                    !row.target ? ""
                    : row.met() ? "<span class=\"good\">✓ met</span>"
                                : "<span class=\"bad\">✗ missed</span>",
                    escape(row.note)});
  }
  return report::card(
      "Measured figures", "",
      report::table({"case", "metric", "value", "unit", "target", "limit", "peer", "", "note"}, rows, {2, 4, 5, 6}),
      true);
}

std::string events(const Run& run) {
  std::vector<std::vector<std::string>> rows;
  for (auto event = run.metrics.events.rbegin(); event != run.metrics.events.rend() && rows.size() < kMaxLogRows;
       ++event) {
    rows.push_back({fmt::format("{}", event->step), escape(format_seconds(event->time)), escape(event->event),
                    escape(event->text)});
  }
  if (rows.empty()) {
    return "";
  }
  return report::card(
      "Events",
      run.metrics.events.size() > rows.size()
          ? fmt::format("The last {} of {}.", rows.size(), run.metrics.events.size())
          : "Latest first.",
      "<div class=\"log\" tabindex=\"0\">" + report::table({"step", "time", "event", ""}, rows, {0}) + "</div>\n",
      true);
}

}  // namespace

std::string render(const Run& run) {
  const Figures figures = compute_figures(run);
  std::string html = header(run) + "<main>\n" + notices(run) + headlines(run, figures) + "<div class=\"cards\">\n";
  if (run.metrics.steps.empty()) {
    html += report::card("No steps yet", "", "<p>This run has not recorded a training step.</p>\n", true);
  } else {
    html += bars(run, figures) + learning(run) + shares(run) + step_times(run, figures) + predicted_timeline(run) +
            timeline(run, figures);
  }
  html += workers(run, figures) + traffic(run, figures) + decisions(run) + events(run) + summary(run);
  if (!run.job.empty()) {
    html += fmt::format(
        "<section class=\"card wide\"><details><summary>The job as it ran (job.yaml)</summary><pre>{}</pre></details>"
        "</section>\n",
        escape(run.job));
  }
  html += fmt::format("</div></main>\n<footer>Motley {}</footer>\n", escape(run.file.motley_version));
  return report::document(fmt::format("Run {}", run.name), html);
}

Result<std::string> render_run(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const Run run, read_run(folder));
  return render(run);
}

Status write_report(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const std::string html, render_run(folder));
  return write_file(folder / "report.html", html);
}

}  // namespace motley::report
