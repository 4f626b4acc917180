#include "motley/report/closing.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "motley/base/os/terminal.h"
#include "motley/base/units.h"
#include "motley/report/run.h"

namespace motley::report {
namespace {

// How a row of the summary is called and written here.
struct SummaryFigure {
  const char* metric;
  const char* label;
  std::string (*format)(double);
};

std::string as_number(double value) {
  return format_number(value);
}
std::string as_percent(double value) {
  return format_percent(value);
}
std::string as_factor(double value) {
  return fmt::format("{:.2f}×", value);
}

constexpr SummaryFigure kQuality[] = {{"test_accuracy", "test accuracy", as_percent},
                                      {"test_loss", "test loss", as_number},
                                      {"test_auc", "test AUC", as_number}};
constexpr SummaryFigure kSpeedUp = {"step_speedup_over_equal", "speed-up", as_factor};
constexpr SummaryFigure kWait = {"worst_wait_share", "longest wait", as_percent};
constexpr SummaryFigure kPrediction = {"step_prediction_error", "plan's prediction", as_percent};

std::string closing_line(const char* label, const std::string& text) {
  return fmt::format("  {:<20}{}\n", label, text);
}

std::string target_text(const BenchRow& row, const SummaryFigure& figure) {
  if (!row.target) return "";
  return fmt::format(
      " (target {} {}, {})", row.more_is_better ? "≥" : "≤", figure.format(*row.target),
      row.met() ? colored("met", TextColor::kGood, STDOUT_FILENO) : colored("missed", TextColor::kBad, STDOUT_FILENO));
}

// Its line, with more words behind the figure; nothing where the summary has it not.
std::string figure_line(const Run& run, const SummaryFigure& figure, const std::string& more = "") {
  const auto row = std::ranges::find(run.summary, figure.metric, &BenchRow::metric);
  if (row == run.summary.end()) return "";
  return closing_line(figure.label, figure.format(row->value) + more + target_text(*row, figure));
}

// The loss says by itself whether anything was learned, also where nothing was tested.
std::string loss_line(const Run& run) {
  const std::optional<LossChange> loss = measure_loss(run);
  if (!loss) return "";
  const std::string words = describe_loss(*loss);
  const bool is_bad = loss->kind() == LossChange::Kind::kGrew || loss->kind() == LossChange::Kind::kNotFinite;
  return closing_line("training loss", is_bad ? colored(words, TextColor::kBad, STDOUT_FILENO) : words);
}

// "computing 78 %, waiting for others 12 %, ...", the largest part first: of the time of all workers together.
std::string time_parts(const TypicalStep& step) {
  Phases sum;
  for (const Phases& worker : step.workers) {
    sum.load += worker.load;
    sum.compute += worker.compute;
    sum.gradient_sync += worker.gradient_sync;
    sum.wait += worker.wait;
  }
  std::vector<std::pair<double, const char*>> parts = {{sum.compute, "computing"},
                                                       {sum.gradient_sync, "gradient synchronisation"},
                                                       {sum.wait, "waiting for others"},
                                                       {sum.load, "loading samples"}};
  std::ranges::sort(parts, std::greater(), &std::pair<double, const char*>::first);
  std::vector<std::string> texts;
  for (const auto& [seconds, what] : parts) {
    if (seconds >= 0.005 * sum.total())
      texts.push_back(fmt::format("{} {}", what, format_percent(seconds / sum.total(), 0)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string first_line(const Run& run, const Figures& figures) {
  return fmt::format("done in {}: {}\n", format_seconds(run_seconds(run)), describe_length(run, figures));
}

// The worker that waits most of all steps, and what that is of a typical one, which has no stall.
std::string wait_line(const Run& run, const Figures& figures) {
  const auto typical = figures.max_wait_fraction();
  return run.file.workers.size() < 2
             ? ""
             : figure_line(run, kWait,
                           typical ? fmt::format(" of all steps, {} of a typical one", format_percent(*typical)) : "");
}

std::string prediction_line(const Run& run, const Figures& figures) {
  if (!figures.predicted || !figures.balanced) return figure_line(run, kPrediction, " off what a step took");
  const double off = figures.balanced->seconds / *figures.predicted - 1;
  return closing_line(kPrediction.label, fmt::format("{}; a step took {} {}", format_seconds(*figures.predicted),
                                                     format_percent(std::abs(off)), off < 0 ? "less" : "more"));
}

}  // namespace

Result<std::string> closing_text(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const Run run, read_run(folder));
  if (run.metrics.steps.empty()) return std::string("done: no step was left to do\n");
  const Figures figures = compute_figures(run);
  std::string text = first_line(run, figures) + loss_line(run);
  for (const SummaryFigure& figure : kQuality) text += figure_line(run, figure);
  if (const auto& step = figures.basis()) {
    const char* whose = run.file.workers.size() > 1 ? " (mean of the workers)" : "";
    const auto samples = figures.samples_per_second();
    const std::string rate = samples ? fmt::format(", {} samples/s", format_number(*samples)) : "";
    text += closing_line("a typical step",
                         fmt::format("{}{}: {}{}", format_seconds(step->seconds), rate, time_parts(*step), whose));
  }
  text += prediction_line(run, figures) + figure_line(run, kSpeedUp, " over the equal split") + wait_line(run, figures);
  const auto audit = std::ranges::find(run.summary, "samples_not_used_exactly_once", &BenchRow::metric);
  if (audit != run.summary.end() && audit->value != 0) {
    const std::string wrong = fmt::format("{} lost or duplicated", format_number(audit->value));
    text += closing_line("samples", colored(wrong, TextColor::kBad, STDOUT_FILENO));
  }
  return text + closing_line("page", (folder / "report.html").string());
}

}  // namespace motley::report
