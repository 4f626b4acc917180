// What a comparison of runs looks like: a page, and text for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "motley/base/units.h"
#include "motley/report/comparison.h"
#include "motley/report/page/chart.h"
#include "motley/report/page/html.h"
#include "motley/report/run_curves.h"
#include "motley/report/text_columns.h"

namespace motley::report {
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::vector<std::string>>;

std::vector<std::string> header(const Comparison& comparison) {
  std::vector<std::string> cells = {""};
  for (const ComparedRun& one : comparison.runs) cells.push_back(one.name);
  return cells;
}

std::string describe_state(const Run& run) {
  return run.file.finished ? run.file.exit.value_or("finished") : "did not finish";
}

// The run's name behind its colour, with a link to its page where it has one.
std::string name_cell(const ComparedRun& one, std::size_t i, const fs::path& folder) {
  const std::string key = fmt::format("<span class=\"key\" style=\"background:var(--series-{})\"></span>", i % 8);
  const fs::path page = one.folder / "report.html";
  if (!fs::exists(page)) return key + escape(one.name);
  const fs::path link = fs::proximate(fs::weakly_canonical(page), fs::weakly_canonical(folder.empty() ? "." : folder));
  return fmt::format("{}<a href=\"{}\">{}</a>", key, escape(to_link(link.string())), escape(one.name));
}

std::string figure_card(const Comparison& comparison, const fs::path& folder) {
  const std::vector<ComparedRun>& runs = comparison.runs;
  std::string html = "<div class=\"scroll\"><table><thead><tr><th scope=\"col\"></th>";
  for (std::size_t i = 0; i < runs.size(); ++i) {
    html += fmt::format("<th scope=\"col\" class=\"number\">{}</th>", name_cell(runs[i], i, folder));
  }
  html += "</tr></thead><tbody>\n<tr><td>state</td>";
  for (const ComparedRun& one : runs)
    html += fmt::format("<td class=\"number\">{}</td>", escape(describe_state(one.run)));
  html += "</tr>\n";
  std::string group;
  for (const ComparedFigure& figure : comparison.figures) {
    if (figure.group != group) {
      group = figure.group;
      html += fmt::format("<tr class=\"group\"><td colspan=\"{}\">{}</td></tr>\n", runs.size() + 1, escape(group));
    }
    html += fmt::format("<tr><td>{}</td>", escape(figure.name));
    const std::vector<bool> best = figure.best();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      html +=
          fmt::format("<td class=\"number\">{}</td>", best[i] ? best_cell(figure.texts[i]) : escape(figure.texts[i]));
    }
    html += "</tr>\n";
  }
  return card(
      "Figures",
      "★ marks the best. A step is the mean over the steps whose time is in the middle half; its parts are means "
      "over the workers.",
      html + "</tbody></table></div>\n", true);
}

// A bar a run: the parts of its typical step, or of a thousand samples where the batches differ.
std::string bar_card(const Comparison& comparison) {
  const std::vector<ComparedRun>& runs = comparison.runs;
  const bool is_by_sample = std::ranges::any_of(runs, [&](const ComparedRun& one) {
    return one.figures.batch > 0 && one.figures.batch != runs[0].figures.batch;
  });
  const auto scale = [&](const ComparedRun& one) {
    return is_by_sample && one.figures.batch > 0 ? 1000 / one.figures.batch : 1.0;
  };
  double extent = 0;
  for (const ComparedRun& one : runs) extent = std::max(extent, one.time ? one.time->total * scale(one) : 0);
  if (extent <= 0) return "";
  std::vector<BarRow> rows;
  for (const ComparedRun& one : runs) {
    if (!one.time) continue;
    std::vector<Segment> segments;
    double at = 0;
    std::string label = one.name + ":";
    for (const auto& [kind, words, part] : {std::tuple("load", "loading data", &StepTime::load),
                                            {"compute", "computing", &StepTime::compute},
                                            {"gradient_sync", "gradient synchronisation", &StepTime::gradient_sync},
                                            {"wait", "waiting for others", &StepTime::wait},
                                            {"other", "other", &StepTime::other}}) {
      const double seconds = (*one.time).*part * scale(one);
      segments.push_back({at, at + seconds, kind, fmt::format("{}: {}", words, format_seconds(seconds))});
      at += seconds;
      label += fmt::format(" {} {}", words, format_seconds(seconds));
    }
    rows.push_back({one.name, segment_bar(segments, extent, label), format_seconds(one.time->total * scale(one))});
  }
  return card("Where the time goes",
              is_by_sample ? "Of 1,000 samples, as the runs' batches differ; means over the workers."
                           : "Of a typical step; means over the workers.",
              bar_group(is_by_sample ? "1,000 samples" : "A step", "", rows) +
                  legend({{"load", "loading data"},
                          {"compute", "computing"},
                          {"gradient_sync", "gradient synchronisation"},
                          {"wait", "waiting for others"},
                          {"other", "other, such as the optimizer"}}),
              true);
}

// --- Curves

// The axis of a chart: steps, or time in a unit that fits the longest run.
struct Axis {
  std::string label = "step";
  double unit = 0;  // seconds; 0: it is steps
  double at(std::int64_t step, double seconds) const { return unit > 0 ? seconds / unit : static_cast<double>(step); }
};

Axis time_axis(const std::vector<ComparedRun>& runs) {
  double longest = 0;
  for (const ComparedRun& one : runs) longest = std::max(longest, run_seconds(one.run));
  if (longest < 300) return {"seconds of training", 1};
  return longest < 18'000 ? Axis{"minutes of training", 60} : Axis{"hours of training", 3600};
}

// What a chart draws: a value of each step, smoothed, and one of each evaluation.
struct Curve {
  const char* title;
  const char* y;
  bool is_fraction;
  std::optional<double> (*of_step)(const StepMetrics&);
  std::optional<double> train::EvaluationFigures::* of_evaluation;
};

std::string curve_chart(const std::vector<ComparedRun>& runs, const Curve& curve, const Axis& axis) {
  LineChart chart{.title = fmt::format("{} against {}", curve.title, axis.unit > 0 ? "time" : "steps"),
                  .summary = fmt::format("{} of each run.", curve.title),
                  .x_label = axis.label,
                  .y_label = curve.y,
                  .percent = curve.is_fraction};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const train::Metrics& metrics = runs[i].run.metrics;
    Series training{runs[i].name + ", training", static_cast<int>(i), LineStyle::kDashed};
    Series test{runs[i].name + ", test", static_cast<int>(i), LineStyle::kMarked};
    Smoothing smoothing(metrics.steps.size());
    for (const StepMetrics& step : metrics.steps) {
      if (const auto value = curve.of_step(step)) training.add(axis.at(step.step, step.time), smoothing.add(*value));
    }
    for (const EvaluationMetrics& line : metrics.evaluations) {
      if (const auto value = line.evaluation.*curve.of_evaluation) test.add(axis.at(line.step, line.time), *value);
    }
    if (test.x.empty()) training.style = LineStyle::kLine;
    for (Series* series : {&training, &test}) {
      if (series->x.empty()) continue;
      chart.summary += fmt::format(" {}: {:.3g} at the end.", series->name, series->y.back());
      chart.series.push_back(std::move(*series));
    }
  }
  return chart.series.empty() ? "" : card(chart.title, "", line_chart(chart));
}

std::string speed_chart(const std::vector<ComparedRun>& runs) {
  LineChart chart{.title = "Samples per second",
                  .summary = "Samples per second of each run by step, smoothed.",
                  .x_label = "step",
                  .y_label = "samples per second",
                  .from_zero = true};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Series series{runs[i].name, static_cast<int>(i)};
    Smoothing smoothing(runs[i].run.metrics.steps.size());
    for (const StepMetrics& step : runs[i].run.metrics.steps) {
      const double samples = count_samples(step, runs[i].figures);
      if (step.baseline || samples <= 0 || step.step_seconds <= 0) continue;
      series.add(static_cast<double>(step.step), smoothing.add(samples / step.step_seconds, step.step_seconds));
    }
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? "" : card(chart.title, "Smoothed; without baseline steps.", line_chart(chart), true);
}

std::string curves(const Comparison& comparison) {
  const Curve loss{"Loss", "loss", false, [](const StepMetrics& step) { return std::optional(step.loss); },
                   &train::EvaluationFigures::loss};
  const Curve accuracy{"Accuracy", "accuracy", true, [](const StepMetrics& step) { return step.accuracy; },
                       &train::EvaluationFigures::accuracy};
  std::string html;
  for (const Curve& curve : {loss, accuracy}) {
    for (const Axis& axis : {Axis(), time_axis(comparison.runs)}) html += curve_chart(comparison.runs, curve, axis);
  }
  return html + speed_chart(comparison.runs);
}

// --- Its parts

// The best run by a figure, and how much better it is than the worst.
std::string best_tile(const Comparison& comparison, const char* name, const char* label) {
  const auto figure = std::ranges::find(comparison.figures, name, &ComparedFigure::name);
  if (figure == comparison.figures.end()) return "";
  const std::vector<bool> best = figure->best();
  const auto at = static_cast<std::size_t>(std::ranges::find(best, true) - best.begin());
  if (at == best.size()) return "";
  std::vector<std::string> others;
  for (std::size_t i = 0; i < best.size(); ++i) {
    if (i != at) others.push_back(fmt::format("{} {}", comparison.runs[i].name, figure->texts[i]));
  }
  return tile(label, figure->texts[at], fmt::format("{}; {}", comparison.runs[at].name, fmt::join(others, ", ")));
}

// Whether each run has a job file; a script has none.
bool knows_jobs(const Comparison& comparison) {
  return std::ranges::none_of(comparison.runs, [](const ComparedRun& one) { return one.run.job.empty(); });
}

std::string difference_card(const Comparison& comparison) {
  if (comparison.differences.empty()) {
    return card("What the jobs differ in", "",
                knows_jobs(comparison)
                    ? "<p>Nothing: all keys have the same values.</p>\n"
                    : "<p>Nothing that is known: what a script sets by itself is not recorded.</p>\n",
                true);
  }
  Rows rows = comparison.differences;
  rows.insert(rows.begin(), header(comparison));
  rows.front().front() = "key";
  return card("What the jobs differ in", "Keys of <code>job.yaml</code> with the same value in all runs are left out.",
              text_table(std::move(rows)), true);
}

std::string notices(const Comparison& comparison) {
  std::string html;
  for (const ComparedRun& one : comparison.runs) {
    if (one.run.file.error) html += notice(one.name, escape(*one.run.file.error), Tone::kBad);
  }
  const bool is_emulated = std::ranges::any_of(comparison.runs, [](const ComparedRun& one) {
    return std::ranges::any_of(one.run.file.workers,
                               [](const train::RunWorker& worker) { return worker.emulated.has_value(); });
  });
  if (is_emulated) {
    html += notice("Emulated", "The speed of workers was emulated; times are those of the emulated devices.");
  }
  return html;
}

std::string sentence_list(const std::vector<std::string>& sentences) {
  std::string html = "<ul class=\"sentences\">\n";
  for (const std::string& sentence : sentences) html += fmt::format("<li>{}</li>\n", escape(sentence));
  return html + "</ul>\n";
}

}  // namespace

std::string comparison_text(const Comparison& comparison) {
  Rows rows = {header(comparison)};
  rows.push_back({"state"});
  for (const ComparedRun& one : comparison.runs) rows.back().push_back(describe_state(one.run));
  for (const ComparedFigure& figure : comparison.figures) {
    rows.push_back({figure.name});
    const std::vector<bool> best = figure.best();
    for (std::size_t i = 0; i < best.size(); ++i) rows.back().push_back(figure.texts[i] + (best[i] ? " *" : ""));
  }
  const bool is_marked = std::ranges::any_of(comparison.figures, [](const ComparedFigure& figure) {
    const std::vector<bool> best = figure.best();
    return std::ranges::find(best, true) != best.end();
  });
  std::string text = text_columns(rows) + (is_marked ? "  (* the best)\n" : "");
  for (const std::string& sentence : comparison.sentences) text += sentence + "\n";
  if (comparison.differences.empty()) {
    return text + (knows_jobs(comparison)
                       ? "the jobs differ in nothing\n"
                       : "the runs differ in nothing that is known; a script's settings are not recorded\n");
  }
  rows = comparison.differences;
  rows.insert(rows.begin(), header(comparison));
  return text + "what the jobs differ in\n" + text_columns(rows);
}

std::string comparison_page(const Comparison& comparison, const fs::path& folder) {
  std::vector<std::string> names;
  for (const ComparedRun& one : comparison.runs) names.push_back(one.name);
  const std::string title = fmt::format("Comparison of {}", fmt::join(names, ", "));
  const std::string why =
      comparison.sentences.empty()
          ? ""
          : card("What got faster, and why", escape(fmt::format("Each run beside {}.", comparison.runs[0].name)),
                 sentence_list(comparison.sentences), true);
  return document({.title = title,
                   .heading = comparison.runs.size() > 4 ? fmt::format("Comparison of {} runs", names.size()) : title,
                   .facts = {format_count(std::ssize(names), "run")},
                   .notices_html = notices(comparison),
                   .tiles_html = best_tile(comparison, "samples per second", "Most samples per second") +
                                 best_tile(comparison, "a step", "Shortest step") +
                                 best_tile(comparison, "test accuracy", "Best test accuracy") +
                                 best_tile(comparison, "test AUC", "Best test AUC"),
                   .cards_html = why + figure_card(comparison, folder) + bar_card(comparison) + curves(comparison) +
                                 difference_card(comparison)});
}

}  // namespace motley::report
