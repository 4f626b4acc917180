#include "motley/report/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/report/membership_view.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/plan_view.h"
#include "motley/report/run.h"
#include "motley/report/run_curves.h"

namespace motley::report {
namespace {

constexpr std::size_t kMaxLogRows = 300;

using Rows = std::vector<std::vector<std::string>>;

std::string format_date(double seconds_since_1970) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(seconds_since_1970)));
}

std::vector<std::string> facts(const Run& run) {
  std::vector<std::string> facts = {format_count(std::ssize(run.file.workers), "worker")};
  if (run.prediction) {
    const planning::Plan& plan = run.prediction->plan;
    facts.push_back(fmt::format("planned: {}, {}, {}", format_count(std::ssize(plan.stages), "stage"),
                                format_count(plan.micro_batches, "micro-batch", "es"), to_string(plan.schedule)));
  }
  if (!run.file.gradient_sync.empty()) facts.push_back("gradient synchronisation: " + run.file.gradient_sync);
  if (!run.metrics.steps.empty()) {
    const StepMetrics& last = run.metrics.steps.back();
    facts.push_back(
        fmt::format("{} steps, {}", last.step, format_count(static_cast<std::int64_t>(last.epoch) + 1, "epoch")));
    const std::size_t attempts = run.file.attempts.size();
    facts.push_back(format_seconds(run_seconds(run)) + (attempts > 1 ? fmt::format(" in {} attempts", attempts) : ""));
  }
  if (run.file.started > 0) facts.push_back("started " + format_date(run.file.started));
  if (!run.file.machine.empty()) facts.push_back(run.file.machine);
  return facts;
}

std::string notices(const Run& run) {
  std::string html;
  if (run.file.error) html += notice("Error", escape(*run.file.error), Tone::kBad);
  if (run.metrics.is_torn) {
    html += notice("Cut short",
                   "The last line of metrics.jsonl is incomplete, as a killed run leaves it; it was left out.");
  }
  std::vector<std::string> emulated;
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    if (const auto& how = run.file.workers[i].emulated) {
      emulated.push_back(fmt::format("<b>{}</b> ({})", escape(worker_name(run, i)), escape(*how)));
    }
  }
  if (!emulated.empty()) {
    html +=
        notice("Emulated", fmt::format("The speed of {} was emulated; times below are those of the emulated devices.",
                                       fmt::join(emulated, ", ")));
  }
  return html;
}

// A large figure: the summary's row where there is one, else what the steps give so far; none where there is neither.
struct Headline {
  const char* metric;
  const char* label;
  std::string (*format)(double);
  std::optional<double> measured = {};
  bool has_optimum = false;  // the row's limit, or the one here, is the best there could be
  std::optional<double> optimum = {};
};

std::string draw(const Run& run, const Headline& headline) {
  const auto row = std::ranges::find_if(run.summary, [&](const BenchRow& candidate) {
    return candidate.metric == headline.metric && std::isfinite(candidate.value);
  });
  const bool is_summed_up = row != run.summary.end();
  if (!is_summed_up && !headline.measured) return "";
  std::vector<std::string> remarks;
  Tone tone = Tone::kPlain;
  if (!is_summed_up) {
    remarks.push_back("from the steps so far");
  } else if (row->target) {
    remarks.push_back(fmt::format("target {} {}", row->more_is_better ? "≥" : "≤", headline.format(*row->target)));
    tone = row->met() ? Tone::kGood : Tone::kBad;
  }
  const std::optional<double> optimum = is_summed_up && row->limit ? row->limit : headline.optimum;
  if (headline.has_optimum && optimum) remarks.push_back("optimum " + headline.format(*optimum));
  return tile(headline.label, headline.format(is_summed_up ? row->value : *headline.measured),
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
  if (!figures.balanced) return "";
  const double measured = figures.balanced->seconds;
  std::string remark = "nothing was predicted";
  if (!keeps_its_plan(run)) {
    remark = "of all plans that the run has followed";
  } else if (run.prediction && run.prediction->plan.predicted.step_seconds > 0) {
    const double predicted = run.prediction->plan.predicted.step_seconds;
    remark = fmt::format("predicted {}, {:+.1f} %", format_seconds(predicted), 100 * (measured / predicted - 1));
  }
  return tile("Step", format_seconds(measured), remark);
}

// What an epoch costs at the steps' typical pace, where the cluster file has prices.
std::string cost(const Run& run, const Figures& figures) {
  const auto& basis = figures.basis();
  const std::optional<double> price = run.file.price_per_hour;
  if (!price || !basis || run.file.global_batch_size <= 0 || run.file.training_samples == 0) return "";
  const double hours = basis->seconds * static_cast<double>(run.file.training_samples) /
                       static_cast<double>(run.file.global_batch_size) / 3600;
  return tile("Cost of an epoch", fmt::format("{:.3g}", *price * hours),
              fmt::format("{:.3g} an hour for all devices, by the cluster file", *price));
}

std::string throughput(const Figures& figures) {
  const std::optional<double> samples = figures.samples_per_second();
  if (!samples) return "";
  return tile("Samples per second", format_number(*samples),
              fmt::format("{} a step of {:.0f}", format_seconds(figures.basis()->seconds), figures.batch));
}

std::string headlines(const Run& run, const Figures& figures) {
  std::optional<double> accuracy, auc;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    accuracy = line.evaluation.accuracy ? line.evaluation.accuracy : accuracy;
    auc = line.evaluation.auc ? line.evaluation.auc : auc;
  }
  const auto times = [](double value) { return fmt::format("{:.2f}×", value); };
  const auto share = [](double value) { return format_percent(value); };
  const auto area = [](double value) { return fmt::format("{:.4f}", value); };
  const auto count = [](double value) { return fmt::format("{:.0f}", value); };
  return (auc ? draw(run, {"test_auc", "Test AUC", area, auc})
              : draw(run, {"test_accuracy", "Test accuracy", share, accuracy})) +
         throughput(figures) +
         (figures.is_planned ? planned_step(run, figures)
                             : draw(run, {"step_speedup_over_equal", "Speed-up over equal split", times,
                                          figures.speedup(), true, figures.possible_speedup()})) +
         draw(run, {"worst_wait_share", "Largest wait fraction of step time", share, figures.max_wait_fraction()}) +
         draw(run, {"samples_not_used_exactly_once", "Samples lost or duplicated", count}) + cost(run, figures);
}

std::string bars(const Run& run, const Figures& figures) {
  double extent = 0;
  for (const auto* step : {&figures.equal, &figures.balanced, &figures.optimum}) {
    if (!*step) continue;
    extent = std::max(extent, (*step)->seconds);
    for (const Phases& worker : (*step)->workers) extent = std::max(extent, worker.total());
  }
  if (extent <= 0) return "";
  const auto group = [&](const char* heading, const std::string& remark, const TypicalStep& step) {
    std::vector<BarRow> rows;
    const std::vector<std::int64_t> whole = step.whole_samples();
    for (std::size_t i = 0; i < step.workers.size(); ++i) {
      const auto& [samples, load, compute, gradient_sync, wait] = step.workers[i];
      std::vector<Segment> segments;
      double at = 0;
      for (const auto& [kind, seconds] :
           {std::pair{"load", load}, {"compute", compute}, {"gradient_sync", gradient_sync}, {"wait", wait}}) {
        segments.push_back({at, at + seconds, kind, fmt::format("{}: {}", kind, format_seconds(seconds))});
        at += seconds;
      }
      const std::string label = fmt::format("{}: load {}, compute {}, gradient synchronisation {}, wait {}",
                                            worker_name(run, i), format_seconds(load), format_seconds(compute),
                                            format_seconds(gradient_sync), format_seconds(wait));
      rows.push_back({worker_name(run, i), segment_bar(segments, extent, label), format_count(whole[i], "sample")});
    }
    return bar_group(heading, fmt::format("{} a step, {}", format_seconds(step.seconds), remark), rows);
  };
  std::string html;
  if (figures.equal) {
    const char* steps = figures.balanced ? "baseline steps in this run" : "steps";
    html += group("Equal split", fmt::format("middle half of {} {}", figures.equal->steps, steps), *figures.equal);
  }
  if (figures.balanced) {
    html +=
        group(own_heading(figures), fmt::format("middle half of {} steps", figures.balanced->steps), *figures.balanced);
  }
  if (figures.optimum) {
    html += group("Optimum", "if each worker keeps the speed it showed and nobody waits", *figures.optimum);
  }
  html += legend({{"load", "load"},
                  {"compute", "compute"},
                  {"gradient_sync", "gradient synchronisation"},
                  {"wait", "wait for others"}});
  return card("Who did what in a step",
              "One bar a worker, all on the same scale of time: means over the steps whose time is in the middle half.",
              html, true);
}

// What all ranks did in one recorded step with the run's own split and, on the same scale, in a baseline step.
std::string timeline(const Run& run, const Figures& figures) {
  static const std::vector<std::pair<std::string, std::string>> kinds = {
      {"load", "load"},           {"forward", "forward"},
      {"backward", "backward"},   {"emulated", "emulated slowness"},
      {"optimizer", "optimizer"}, {"gradient_sync", "gradient synchronisation"},
      {"wait", "wait for others"}};
  struct Window {
    std::string heading;
    std::optional<std::int64_t> step = {};
    double begin = 1e300, end = 0;
    std::vector<const TraceSpan*> spans = {};
  };
  Window equal{"Equal split"}, own{own_heading(figures)};
  std::set<std::int64_t> recorded;
  for (const TraceSpan& span : run.trace) recorded.insert(span.step);
  for (const StepMetrics& step : run.metrics.steps) {
    if (recorded.contains(step.step)) (step.baseline || step.mode == "equal" ? equal : own).step = step.step;
  }
  double extent = 0;
  for (Window* window : {&equal, &own}) {
    for (const TraceSpan& span : run.trace) {
      const bool is_shown = std::ranges::any_of(kinds, [&](const auto& kind) { return kind.first == span.phase; });
      if (span.step != window->step || !is_shown) continue;
      window->spans.push_back(&span);
      window->begin = std::min(window->begin, span.begin);
      window->end = std::max(window->end, span.end);
    }
    extent = std::max(extent, window->end - window->begin);
  }
  if (extent <= 0) return "";
  std::string html;
  for (const Window* window : {&equal, &own}) {
    if (!window->step) continue;
    std::vector<BarRow> rows;
    for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
      std::vector<Segment> segments;
      for (const TraceSpan* span : window->spans) {
        if (span->rank != run.file.workers[i].rank) continue;
        segments.push_back({span->begin - window->begin, span->end - window->begin, span->phase,
                            fmt::format("{}: {}", span->phase, format_seconds(span->end - span->begin)),
                            span->phase == "gradient_sync" || span->phase == "wait"});
      }
      // Emulated time lies inside forward and backward: what is longer is drawn first.
      std::ranges::stable_sort(segments, std::greater(),
                               [](const Segment& segment) { return segment.end - segment.begin; });
      const std::string label = fmt::format("{}, step {}", worker_name(run, i), *window->step);
      rows.push_back({worker_name(run, i), segment_bar(segments, extent, label, 2), ""});
    }
    html += bar_group(window->heading,
                      fmt::format("step {}, {}", *window->step, format_seconds(window->end - window->begin)), rows);
  }
  return card("One step as it happened",
              "Upper track: computing. Lower track: gradient synchronisation and waiting. All recorded steps are in "
              "<code>timeline.json</code>, which Perfetto and chrome://tracing open.",
              html + legend(kinds), true);
}

// The step as the plan's replay has it, to be held against the one that happened.
std::string predicted_timeline(const Run& run) {
  if (!run.prediction || !keeps_its_plan(run)) return "";
  if (run.prediction->timeline) return plan_timeline(*run.prediction->timeline, run.prediction->plan);
  return card("One step as predicted", "", fmt::format("<p>Not drawn: {}.</p>\n", escape(run.prediction->why_not)),
              true);
}

// A card with the latest lines of a log of `count`, the latest first; nothing where there are none.
std::string log_card(const char* title, Rows rows, std::size_t count, bool wide) {
  if (count == 0) return "";
  const bool is_cut = count > kMaxLogRows;
  return card(title, is_cut ? fmt::format("The last {} of {}.", kMaxLogRows, count) : "Latest first.",
              fmt::format("<div class=\"log\" tabindex=\"0\">{}</div>\n", text_table(std::move(rows), {0})), wide);
}

std::string decisions(const Run& run) {
  Rows rows = {{"step", "decision", "samples"}};
  std::size_t count = 0;
  for (auto step = run.metrics.steps.rbegin(); step != run.metrics.steps.rend(); ++step) {
    if (!step->decision || ++count > kMaxLogRows) continue;
    rows.push_back(
        {fmt::format("{}", step->step), *step->decision, fmt::format("{}", fmt::join(step->samples, " · "))});
  }
  return log_card("Why shares moved", std::move(rows), count, false);
}

// Of a run that was resumed: each start, and what was done from it on.
std::string history(const Run& run) {
  const std::vector<Attempt> attempts = list_attempts(run);
  if (attempts.size() < 2) return "";
  Rows rows = {{"attempt", "started", "workers", "steps", "took", "ended"}};
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const Attempt& one = attempts[i];
    const bool is_last = i + 1 == attempts.size();
    rows.push_back({fmt::format("{}", i + 1), one.started > 0 ? format_date(one.started) : "–",
                    fmt::format("{}", one.workers),
                    one.last_step < one.first_step ? "none" : fmt::format("{} to {}", one.first_step, one.last_step),
                    format_seconds(one.seconds), one.exit.value_or(is_last ? "not yet, or killed" : "killed")});
  }
  return card("Attempts",
              "The run was resumed. Steps are those that count: what an attempt had done since its last checkpoint was "
              "done again by the next one. Times are of training, without what lies between attempts.",
              text_table(std::move(rows), {}), true);
}

std::string events(const Run& run) {
  Rows rows = {{"step", "time", "event", ""}};
  const auto& events = run.metrics.events;
  for (auto event = events.rbegin(); event != events.rend() && rows.size() <= kMaxLogRows; ++event) {
    rows.push_back({fmt::format("{}", event->step), format_seconds(event->time), event->event, event->text});
  }
  return log_card("Events", std::move(rows), events.size(), true);
}

std::string workers(const Run& run, const Figures& figures) {
  Rows rows = {{"rank", "name", "device", "emulated", "samples", "a sample takes", "waits", "idle"}};
  const std::vector<std::int64_t> whole =
      figures.basis() ? figures.basis()->whole_samples() : std::vector<std::int64_t>();
  // The replay's devices are in the order of the ranks: by stage, and by replica in it.
  const bool is_predicted = run.prediction && run.prediction->timeline && keeps_its_plan(run) &&
                            run.prediction->timeline->devices.size() == run.file.workers.size();
  if (is_predicted) rows.front().emplace_back("idle, predicted");
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const train::RunWorker& worker = run.file.workers[i];
    std::vector<std::string> row = {
        fmt::format("{}", worker.rank), worker.name, worker.device, worker.emulated.value_or("no"), "–", "–", "–", "–"};
    if (const auto& basis = figures.basis()) {
      const Phases& phases = basis->workers[i];
      row[4] = fmt::format("{}", whole[i]);
      if (phases.samples > 0) row[5] = format_seconds(phases.busy() / phases.samples);
      if (basis->seconds > 0) row[6] = format_percent(phases.wait / basis->seconds);
      if (basis->seconds > 0) row[7] = format_percent(1 - phases.busy() / basis->seconds);
    }
    if (is_predicted) row.push_back(format_percent(run.prediction->timeline->devices[i].bubble_fraction));
    rows.push_back(std::move(row));
  }
  return card("Workers", "Idle is all of a step in which a device does not compute: waiting and exchanging.",
              text_table(std::move(rows), {0, 4, 5, 6, 7, 8}), is_predicted);
}

// Nothing where nothing went over a network and no rows were looked up.
std::string traffic(const Run& run, const Figures& figures) {
  const auto& basis = figures.basis();
  if (!basis) return "";
  const auto any = [&](double Traffic::* value) {
    return std::ranges::any_of(basis->traffic, [&](const Traffic& worker) { return worker.*value > 0; });
  };
  const bool looks_up = any(&Traffic::rows_needed);
  if (!looks_up && !any(&Traffic::sent)) return "";
  const auto share = [](double part, double of) { return of > 0 ? format_percent(part / of) : "–"; };
  Rows rows = {{"worker", "sent to others", "gradient synchronisation", "waits for others"}};
  const auto extend = [](std::vector<std::string>& row, const std::vector<std::string>& more) {
    row.insert(row.end(), more.begin(), more.end());
  };
  if (looks_up) {
    extend(rows.front(),
           {"rows pulled", "rows pushed", "waits for rows", "rows needed", "of these cached", "of the others ahead"});
  }
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const Phases& phases = basis->workers[i];
    const Traffic& worker = basis->traffic[i];
    rows.push_back({worker_name(run, i), format_bytes(worker.sent), format_seconds(phases.gradient_sync),
                    format_seconds(std::max(0.0, phases.wait - worker.rows_wait))});
    if (looks_up) {
      extend(rows.back(), {format_bytes(worker.pulled), format_bytes(worker.pushed), format_seconds(worker.rows_wait),
                           fmt::format("{:.0f}", worker.rows_needed), share(worker.rows_cached, worker.rows_needed),
                           share(worker.rows_prefetched, worker.rows_needed - worker.rows_cached)});
    }
  }
  return card("Where bytes and waits go",
              looks_up ? "A typical step. Sent to others: gradients and activations over the network; rows: what "
                         "requests, answers and gradients take on the wire."
                       : "A typical step. Sent: gradients and activations over the network.",
              text_table(std::move(rows), {1, 2, 3, 4, 5, 6, 7, 8, 9}), looks_up);
}

std::string summary(const Run& run) {
  if (run.summary.empty()) return "";
  const auto cell = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? fmt::format("{:.4g}", *value) : "–";
  };
  Rows rows;
  for (const BenchRow& row : run.summary) {
    const char* verdict = !row.target ? ""
                          : row.met() ? "<span class=\"good\">✓ met</span>"
                                      : "<span class=\"bad\">✗ missed</span>";
    rows.push_back({escape(row.name), escape(row.metric), cell(row.value), escape(row.unit),
                    row.target ? fmt::format("{} {:.4g}", row.more_is_better ? "≥" : "≤", *row.target) : "–",
                    cell(row.limit), cell(row.peer), verdict, escape(row.note)});
  }
  return card("Measured figures", "",
              table({"case", "metric", "value", "unit", "target", "limit", "peer", "", "note"}, rows, {2, 4, 5, 6}),
              true);
}

std::string job(const Run& run) {
  if (run.job.empty()) return "";
  return fmt::format(
      "<section class=\"card wide\"><details><summary>The job as it ran (job.yaml)</summary><pre>{}</pre></details>"
      "</section>\n",
      escape(run.job));
}

std::string render(const Run& run) {
  const Figures figures = compute_figures(run);
  const std::string steps = run.metrics.steps.empty()
                                ? card("No steps yet", "", "<p>This run has not recorded a training step.</p>\n", true)
                                : bars(run, figures) + run_curves(run, figures) + membership_view(run) +
                                      predicted_timeline(run) + timeline(run, figures);
  const std::string exit = run.file.exit.value_or("");
  return document({.title = fmt::format("Run {}", run.name),
                   .badge = !run.file.finished ? "did not finish"
                            : exit.empty()     ? "finished"
                                               : exit,
                   .badge_tone = run.file.finished && exit == "done" ? Tone::kGood : Tone::kBad,
                   .facts = facts(run),
                   .notices_html = notices(run),
                   .tiles_html = headlines(run, figures),
                   .cards_html = history(run) + steps + workers(run, figures) + traffic(run, figures) + decisions(run) +
                                 events(run) + summary(run) + job(run),
                   .footer = "Motley " + run.file.motley_version});
}

}  // namespace

Result<std::string> render_run(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const Run run, read_run(folder));
  return render(run);
}

Status write_report(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const std::string html, render_run(folder));
  return write_file(folder / "report.html", html);
}

}  // namespace motley::report
