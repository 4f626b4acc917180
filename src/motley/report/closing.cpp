#include "motley/report/closing.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

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
std::string as_speedup(double value) {
  return fmt::format("{:.2f} times the equal split's", value);
}

// What was learned, and how fast; a step's time and what it consists of stand between them.
constexpr SummaryFigure kQuality[] = {{"test_accuracy", "test accuracy", as_percent},
                                      {"test_loss", "test loss", as_number},
                                      {"test_auc", "test AUC", as_number}};
constexpr SummaryFigure kSpeed[] = {{"step_speedup_over_equal", "speed", as_speedup},
                                    {"step_prediction_error", "prediction is off by", as_percent},
                                    {"worst_wait_share", "longest wait", as_percent}};

std::string closing_line(const char* label, const std::string& text) {
  return fmt::format("  {:<20}{}\n", label, text);
}

std::string target_text(const BenchRow& row, const SummaryFigure& figure) {
  if (!row.target) return "";
  return fmt::format(
      " (target: at {} {}, {})", row.more_is_better ? "least" : "most", figure.format(*row.target),
      row.met() ? colored("met", TextColor::kGood, STDOUT_FILENO) : colored("missed", TextColor::kBad, STDOUT_FILENO));
}

std::string list_figures(const Run& run, std::span<const SummaryFigure> figures) {
  std::string text;
  for (const SummaryFigure& figure : figures) {
    const auto row = std::ranges::find(run.summary, figure.metric, &BenchRow::metric);
    if (row != run.summary.end())
      text += closing_line(figure.label, figure.format(row->value) + target_text(*row, figure));
  }
  return text;
}

// "computing 78 %, waiting 12 %, ...", the largest part first: of the time of all workers together.
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
  const StepMetrics& last = run.metrics.steps.back();
  std::string text = fmt::format("done in {}: {}, {}", format_seconds(last.time), format_count(last.step, "step"),
                                 format_count(static_cast<std::int64_t>(last.epoch) + 1, "epoch"));
  if (const auto& step = figures.basis(); step && step->seconds > 0) {
    double samples = 0;
    for (const Phases& worker : step->workers) samples += worker.samples;
    if (figures.is_planned) samples = static_cast<double>(run.file.global_batch_size);
    text += fmt::format(", {} samples/s", format_number(std::round(samples / step->seconds)));
  }
  return text + "\n";
}

}  // namespace

Result<std::string> closing_text(const std::filesystem::path& folder) {
  MOTLEY_ASSIGN(const Run run, read_run(folder));
  if (run.metrics.steps.empty()) return std::string("done: no step was left to do\n");
  const Figures figures = compute_figures(run);
  std::string text = first_line(run, figures) + list_figures(run, kQuality);
  if (const auto& step = figures.basis()) {
    text += closing_line("a step", fmt::format("{}: {}", format_seconds(step->seconds), time_parts(*step)));
  }
  text += list_figures(run, kSpeed);
  const auto audit = std::ranges::find(run.summary, "samples_not_used_exactly_once", &BenchRow::metric);
  if (audit != run.summary.end() && audit->value != 0) {
    const std::string wrong = fmt::format("{} lost or duplicated", format_number(audit->value));
    text += closing_line("samples", colored(wrong, TextColor::kBad, STDOUT_FILENO));
  }
  return text + closing_line("page", (folder / "report.html").string());
}

}  // namespace motley::report
