#include "motley/report/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numeric>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/report/membership_view.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/plan_view.h"
#include "motley/report/run.h"
#include "motley/report/run_curves.h"
#include "motley/train/records/typical_steps.h"

namespace motley::report {
namespace {

constexpr std::size_t kMaxLogRows = 300;

using Rows = std::vector<std::vector<std::string>>;

std::string format_date(double seconds_since_1970) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(seconds_since_1970)));
}

std::vector<std::string> facts(const Run& run, const Figures& figures) {
  std::vector<std::string> facts = {format_count(std::ssize(run.file.workers), "worker")};
  if (run.prediction) {
    const planning::Plan& plan = run.prediction->plan;
    facts.push_back(fmt::format("planned: {}, {}, {}", format_count(std::ssize(plan.stages), "stage"),
                                format_count(plan.micro_batches, "micro-batch", "es"), to_string(plan.schedule)));
  }
  if (!run.file.gradient_sync.empty() && run.file.workers.size() > 1)
    facts.push_back("gradients by " + run.file.gradient_sync);
  if (!run.metrics.steps.empty()) {
    facts.push_back(describe_length(run, figures));
    const std::size_t attempts = run.file.attempts.size();
    facts.push_back(format_seconds(run_seconds(run)) + (attempts > 1 ? fmt::format(" in {} attempts", attempts) : ""));
  }
  if (run.file.started > 0) facts.push_back("started " + format_date(run.file.started));
  if (!run.file.machine.empty()) facts.push_back(run.file.machine);
  return facts;
}

// Which is no error.
bool is_stopped(const Run& run) {
  return run.file.exit.value_or("") == "interrupted";
}

// Its first letter as a sentence has it, and its end.
std::string as_sentence(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

// Where the training loss says that something is wrong, or explains curves that look so.
std::string loss_notice(const Run& run) {
  const std::optional<LossChange> loss = measure_loss(run);
  if (!loss || loss->kind() == LossChange::Kind::kUsual) return "";
  const bool has_stayed = loss->kind() == LossChange::Kind::kStayed;
  return notice(has_stayed ? "Loss" : "Diverged", "The training loss is " + escape(describe_loss(*loss)) + ".",
                has_stayed ? Tone::kPlain : Tone::kBad);
}

// Neighbours that are emulated alike are named together.
std::string emulation_notice(const Run& run) {
  std::string text, last;
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const auto& how = run.file.workers[i].emulated;
    if (!how) continue;
    const std::string name = fmt::format("<b>{}</b>", escape(worker_name(run, i)));
    if (!last.empty()) text += *how == last ? ", " : fmt::format(" ({}); ", escape(last));
    text += name;
    last = *how;
  }
  if (last.empty()) return "";
  return notice("Emulated",
                fmt::format("These workers are emulated: {} ({}). Times below are those of the emulated devices.", text,
                            escape(last)));
}

std::string notices(const Run& run) {
  std::string html;
  if (run.file.error && is_stopped(run)) html += notice("Stopped", escape(as_sentence(*run.file.error)));
  if (run.file.error && !is_stopped(run)) html += notice("Error", escape(*run.file.error), Tone::kBad);
  html += loss_notice(run);
  if (run.metrics.is_torn) {
    html += notice("Cut short",
                   "The last line of metrics.jsonl is incomplete, as a killed run leaves it; it was left out.");
  }
  return html + emulation_notice(run);
}

// A large figure: the summary's row where there is one, else what the steps give; none where there is neither.
struct Headline {
  const char* metric;
  const char* label;
  std::string (*format)(double);
  std::optional<double> measured = {};
  std::string remark = {};
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
    if (!run.file.finished) remarks.emplace_back("from the steps so far");
  } else if (row->target) {
    remarks.push_back(fmt::format("target {} {}", row->more_is_better ? "≥" : "≤", headline.format(*row->target)));
    tone = row->met() ? Tone::kGood : Tone::kBad;
  }
  if (!headline.remark.empty()) remarks.push_back(headline.remark);
  return tile(headline.label, headline.format(is_summed_up ? row->value : *headline.measured),
              fmt::format("{}", fmt::join(remarks, " · ")), tone);
}

// What the best split would give, by the bars below.
std::string speedup(const Run& run, const Figures& figures) {
  const auto times = [](double value) { return fmt::format("{:.2f}×", value); };
  const std::optional<double> optimum = figures.possible_speedup();
  return draw(run, {"step_speedup_over_equal", "Speed-up over equal split", times, figures.speedup(),
                    optimum ? "optimum " + times(*optimum) : ""});
}

// The summary's is of all steps, so that stalls count; the bars and the table of the workers are of a typical step.
std::string wait(const Run& run, const Figures& figures) {
  if (run.file.workers.size() < 2) return "";
  const auto share = [](double value) { return format_percent(value); };
  const bool is_of_all = std::ranges::any_of(
      run.summary, [](const BenchRow& row) { return row.metric == std::string_view("worst_wait_share"); });
  const std::optional<double> typical = figures.max_wait_fraction();
  return draw(run, {"worst_wait_share", "Largest wait fraction of step time", share, typical,
                    !is_of_all ? "of a typical step"
                    : typical  ? fmt::format("of all steps; {} of a typical one", share(*typical))
                               : "of all steps"});
}

std::string own_heading(const Run& run, const Figures& figures) {
  return figures.is_planned ? "As planned" : run.file.workers.size() < 2 ? "A typical step" : "As Motley split it";
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
  if (figures.predicted) {
    const double off = measured / *figures.predicted - 1;
    remark = fmt::format("predicted {}; it takes {} {}{}", format_seconds(*figures.predicted),
                         format_percent(std::abs(off)), off < 0 ? "less" : "more",
                         keeps_its_plan(run) ? "" : "; of the last plan that the run has followed");
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
              fmt::format("{:.3g} an hour for all devices, in the currency of the cluster file", *price));
}

std::string throughput(const Figures& figures) {
  const std::optional<double> samples = figures.samples_per_second();
  if (!samples) return "";
  return tile("Samples per second", format_number(*samples),
              fmt::format("{} a step of {:.0f}", format_seconds(figures.basis()->seconds), figures.samples));
}

std::string headlines(const Run& run, const Figures& figures) {
  std::optional<double> accuracy, auc;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    accuracy = line.evaluation.accuracy ? line.evaluation.accuracy : accuracy;
    auc = line.evaluation.auc ? line.evaluation.auc : auc;
  }
  const auto share = [](double value) { return format_percent(value); };
  const auto area = [](double value) { return fmt::format("{:.4f}", value); };
  const auto count = [](double value) { return fmt::format("{:.0f}", value); };
  return (auc ? draw(run, {"test_auc", "Test AUC", area, auc})
              : draw(run, {"test_accuracy", "Test accuracy", share, accuracy})) +
         throughput(figures) + (figures.is_planned ? planned_step(run, figures) : speedup(run, figures)) +
         wait(run, figures) + draw(run, {"samples_not_used_exactly_once", "Samples lost or duplicated", count}) +
         cost(run, figures);
}

// Of the kinds that occur.
std::string explain_kinds(std::vector<std::pair<std::string, std::string>> kinds, const std::set<std::string>& shown) {
  std::erase_if(kinds, [&](const auto& kind) { return !shown.contains(kind.first); });
  return legend(kinds);
}

std::string bars(const Run& run, const Figures& figures) {
  double extent = 0;
  for (const auto* step : {&figures.equal, &figures.balanced, &figures.optimum}) {
    if (!*step) continue;
    extent = std::max(extent, (*step)->seconds);
    for (const Phases& worker : (*step)->workers) extent = std::max(extent, worker.total());
  }
  if (extent <= 0) return "";
  std::set<std::string> shown;  // kinds of which there is some
  const auto group = [&](const std::string& heading, const std::string& remark, const TypicalStep& step) {
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
        if (seconds > 1e-3 * extent) shown.insert(kind);  // else too narrow to be seen
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
    const auto steps = static_cast<std::int64_t>(figures.equal->steps);
    const std::string heading = run.file.workers.size() < 2 ? own_heading(run, figures) : "Equal split";
    const std::string of =
        figures.balanced ? format_count(steps, "baseline step") + " in this run" : format_count(steps, "step");
    html += group(heading, "middle half of " + of, *figures.equal);
  }
  if (figures.balanced) {
    html += group(
        own_heading(run, figures),
        fmt::format("middle half of {}{}", format_count(static_cast<std::int64_t>(figures.balanced->steps), "step"),
                    figures.is_settled ? fmt::format(", without the first {}", train::kSettlingSteps) : ""),
        *figures.balanced);
  }
  if (figures.optimum) {
    html += group("Optimum", "if each worker keeps the speed it showed and nobody waits", *figures.optimum);
  }
  html += explain_kinds({{"load", "load"},
                         {"compute", "compute"},
                         {"gradient_sync", "gradient synchronisation"},
                         {"wait", "wait for others"}},
                        shown);
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
    std::optional<std::int64_t> step = {};  // of those recorded, the one that takes nearest to a typical one's time
    double off = 1e300;
    double begin = 1e300, end = 0;
    std::vector<const TraceSpan*> spans = {};
  };
  Window equal{"Equal split"}, own{own_heading(run, figures)};
  std::set<std::int64_t> recorded;
  for (const TraceSpan& span : run.trace) recorded.insert(span.step);
  for (const StepMetrics& step : run.metrics.steps) {
    if (!recorded.contains(step.step)) continue;
    const bool is_equal = step.baseline || step.mode == "equal";
    const std::optional<TypicalStep>& typical = is_equal ? figures.equal : figures.balanced;
    Window& window = is_equal ? equal : own;
    const double off = typical ? std::abs(step.step_seconds - typical->seconds) : 0;
    if (off > window.off) continue;
    window.off = off;
    window.step = step.step;
  }
  double extent = 0;
  std::set<std::string> shown;
  for (Window* window : {&equal, &own}) {
    for (const TraceSpan& span : run.trace) {
      const bool is_shown = std::ranges::any_of(kinds, [&](const auto& kind) { return kind.first == span.phase; });
      if (span.step != window->step || !is_shown) continue;
      window->spans.push_back(&span);
      if (span.end > span.begin) shown.insert(span.phase);
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
              html + explain_kinds(kinds, shown), true);
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

// Of the workers whose share became one or none, where nobody decided anything.
std::string describe_change_of_workers(const StepMetrics& before, const StepMetrics& after) {
  std::vector<std::string> changes;
  for (std::size_t i = 0; i < std::min(before.batch_split.size(), after.batch_split.size()); ++i) {
    const bool was_there = before.batch_split[i] > 0, is_there = after.batch_split[i] > 0;
    if (was_there != is_there) changes.push_back(fmt::format("worker {} {}", i, is_there ? "joined" : "was gone"));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

// Why the split became that of step `to`: of the decisions since the move before, the last that names it and is none to
// stay, or else the last.
std::string reason(const std::vector<const StepMetrics*>& steps, std::size_t from, std::size_t to) {
  const std::string split = fmt::format("{}", fmt::join(steps[to]->batch_split, "/"));
  std::string last, naming;
  for (std::size_t i = from; i <= to; ++i) {
    const auto& decision = steps[i]->decision;
    if (!decision) continue;
    last = *decision;
    if (last.find(split) != std::string::npos && !last.starts_with("stays")) naming = last;
  }
  if (!naming.empty()) return naming;
  const std::string changes = describe_change_of_workers(*steps[to - 1], *steps[to]);
  return changes.empty() ? last : changes;
}

// A row for each change of the split; a decision to keep it is none.
std::string moves(const Run& run) {
  std::vector<const StepMetrics*> steps;  // without an epoch's last one, where it is smaller
  std::int64_t samples = 0;
  for (const StepMetrics& step : run.metrics.steps) {
    const std::int64_t own = std::accumulate(step.batch_split.begin(), step.batch_split.end(), std::int64_t{0});
    if (step.baseline || step.batch_split.empty() || own < samples) continue;
    samples = own;
    steps.push_back(&step);
  }
  Rows rows;
  std::size_t since = 0;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    if (steps[i]->batch_split == steps[i - 1]->batch_split) continue;
    rows.push_back({fmt::format("{}", steps[i]->step), fmt::format("{}", fmt::join(steps[i - 1]->batch_split, "/")),
                    fmt::format("{}", fmt::join(steps[i]->batch_split, "/")), reason(steps, since, i)});
    since = i;
  }
  const std::size_t count = rows.size();
  std::ranges::reverse(rows);
  if (count > kMaxLogRows) rows.resize(kMaxLogRows);
  rows.insert(rows.begin(), {"from step", "samples before", "samples", "why"});
  return log_card("Why shares moved", std::move(rows), count, true);
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
  const bool is_emulated =
      std::ranges::any_of(run.file.workers, [](const train::RunWorker& worker) { return worker.emulated.has_value(); });
  Rows rows = {{"rank", "name", "device", "samples", "a sample takes", "waits", "idle"}};
  const std::vector<std::int64_t> whole =
      figures.basis() ? figures.basis()->whole_samples() : std::vector<std::int64_t>();
  // The replay's devices are in the order of the ranks: by stage, and by replica in it.
  const bool is_predicted = run.prediction && run.prediction->timeline && keeps_its_plan(run) &&
                            run.prediction->timeline->devices.size() == run.file.workers.size();
  if (is_predicted) rows.front().emplace_back("idle, predicted");
  if (is_emulated) rows.front().emplace_back("emulated");
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    const train::RunWorker& worker = run.file.workers[i];
    const std::string device = worker.kind.empty() || worker.device.starts_with(worker.kind)
                                   ? worker.device
                                   : fmt::format("{} ({})", worker.device, worker.kind);
    std::vector<std::string> row = {fmt::format("{}", worker.rank), worker.name, device, "–", "–", "–", "–"};
    if (const auto& basis = figures.basis()) {
      const Phases& phases = basis->workers[i];
      row[3] = fmt::format("{}", whole[i]);
      if (phases.samples > 0) row[4] = format_seconds(phases.busy() / phases.samples);
      if (basis->seconds > 0) row[5] = format_percent(phases.wait / basis->seconds);
      if (basis->seconds > 0) row[6] = format_percent(1 - phases.busy() / basis->seconds);
    }
    if (is_predicted) row.push_back(format_percent(run.prediction->timeline->devices[i].bubble_fraction));
    if (is_emulated) row.push_back(worker.emulated.value_or("no"));
    rows.push_back(std::move(row));
  }
  std::vector<std::size_t> numeric = {0, 3, 4, 5, 6};
  if (is_predicted) numeric.push_back(7);
  return card("Workers",
              "Of a typical step. Idle is all of it in which a device does not compute: waiting and exchanging.",
              text_table(std::move(rows), numeric), is_predicted || is_emulated);
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
                   .badge = is_stopped(run)      ? "stopped"
                            : !run.file.finished ? "did not finish"
                            : exit.empty()       ? "finished"
                                                 : exit,
                   .badge_tone = is_stopped(run)                       ? Tone::kPlain
                                 : run.file.finished && exit == "done" ? Tone::kGood
                                                                       : Tone::kBad,
                   .facts = facts(run, figures),
                   .notices_html = notices(run),
                   .tiles_html = headlines(run, figures),
                   .cards_html = history(run) + steps + workers(run, figures) + traffic(run, figures) + moves(run) +
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
