#include "motley/report/run_curves.h"

#include <algorithm>
#include <cmath>

#include "motley/base/units.h"
#include "motley/report/page/html.h"

namespace motley::report {
namespace {

enum class Axis { kFitted, kFromZero, kFraction };

std::string curve_card(const char* title, const char* hint, const char* y, Axis axis, std::vector<Series> all) {
  std::erase_if(all, [](const Series& series) { return series.x.empty(); });
  if (all.empty()) return "";
  std::string summary = fmt::format("{} by step.", y);
  for (const Series& series : all) {
    summary += fmt::format(" {}: from {:.3g} to {:.3g}.", series.name, series.y.front(), series.y.back());
  }
  return card(title, hint,
              line_chart({.title = title,
                          .summary = summary,
                          .x_label = "step",
                          .y_label = y,
                          .series = std::move(all),
                          .percent = axis == Axis::kFraction,
                          .from_zero = axis == Axis::kFromZero}));
}

std::string learning(const Run& run) {
  Series loss{"training, a step", 0, LineStyle::kFaint}, smooth_loss{"training, smoothed", 0};
  Series accuracy = loss, smooth_accuracy = smooth_loss;
  Smoothing mean_loss(run.metrics.steps.size()), mean_accuracy = mean_loss;
  for (const StepMetrics& step : run.metrics.steps) {
    const double x = static_cast<double>(step.step);
    loss.add(x, step.loss);
    smooth_loss.add(x, mean_loss.add(step.loss));
    if (!step.accuracy) continue;
    accuracy.add(x, *step.accuracy);
    smooth_accuracy.add(x, mean_accuracy.add(*step.accuracy));
  }
  Series test_loss{"test", 1, LineStyle::kMarked};
  Series test_accuracy = test_loss, test_auc = test_loss;
  for (const EvaluationMetrics& line : run.metrics.evaluations) {
    for (const auto& [series, value] : {std::pair(&test_loss, line.evaluation.loss),
                                        {&test_accuracy, line.evaluation.accuracy},
                                        {&test_auc, line.evaluation.auc}}) {
      if (value) series->add(static_cast<double>(line.step), *value);
    }
  }
  std::string html =
      curve_card("Loss", "", "loss", Axis::kFitted, {loss, smooth_loss, test_loss}) +
      curve_card("Accuracy", "", "accuracy", Axis::kFraction, {accuracy, smooth_accuracy, test_accuracy});
  if (test_auc.x.size() > 1) html += curve_card("Area under the ROC curve", "", "AUC", Axis::kFitted, {test_auc});
  return html;
}

// Nothing where no step says it, as of a script whose optimizer Motley does not see.
std::string learning_rate(const Run& run) {
  Series rate{"learning rate", 0};
  for (const StepMetrics& step : run.metrics.steps) {
    rate.add(static_cast<double>(step.step), step.learning_rate);
  }
  if (std::ranges::none_of(rate.y, [](double value) { return value > 0; })) return "";
  return curve_card("Learning rate", "", "learning rate", Axis::kFromZero, {rate});
}

std::string samples_per_second(const Run& run, const Figures& figures) {
  Series raw{"a step", 0, LineStyle::kFaint}, smooth{"smoothed", 0};
  Series baseline{"baseline (equal split)", 3, LineStyle::kMarks};
  Smoothing mean(run.metrics.steps.size());
  for (const StepMetrics& step : run.metrics.steps) {
    const double samples = count_samples(step, figures);
    if (samples <= 0 || step.step_seconds <= 0) continue;
    const double x = static_cast<double>(step.step), rate = samples / step.step_seconds;
    if (step.baseline) {
      baseline.add(x, rate);
      continue;
    }
    raw.add(x, rate);
    smooth.add(x, mean.add(rate, step.step_seconds));
  }
  return curve_card("Samples per second", "Of all workers together.", "samples per second", Axis::kFromZero,
                    {raw, smooth, baseline});
}

// Each worker's part of the global batch, standing on each other. Only steps where a share changes are kept, and of
// those evenly chosen ones where there are too many.
std::string shares(const Run& run) {
  std::vector<const StepMetrics*> changes, kept;
  const StepMetrics* last = nullptr;
  for (const StepMetrics& step : run.metrics.steps) {
    if (step.baseline || step.samples.size() != run.file.workers.size()) continue;
    if (changes.empty() || changes.back()->samples != step.samples) changes.push_back(&step);
    last = &step;
  }
  if (last == nullptr || run.file.workers.size() < 2 || last->mode == "plan") return "";
  const std::size_t stride = changes.size() / kMaxPoints + 1;
  for (std::size_t i = 0; i < changes.size(); i += stride) kept.push_back(changes[i]);
  if (changes.back() != last) kept.push_back(last);

  std::vector<Series> all;
  std::string summary = "Fraction of the global batch by step; at the end:";
  for (std::size_t i = 0; i < run.file.workers.size(); ++i) {
    Series series{worker_name(run, i), static_cast<int>(i), LineStyle::kArea};
    for (const StepMetrics* step : kept) {
      double sum = 0;
      for (const std::int64_t samples : step->samples) sum += static_cast<double>(samples);
      if (sum > 0) series.add(static_cast<double>(step->step), static_cast<double>(step->samples[i]) / sum);
    }
    summary += fmt::format(" {} {}", series.name, series.y.empty() ? "none" : format_percent(series.y.back()));
    all.push_back(std::move(series));
  }
  return card("Each worker's share of the batch", "Baseline steps with the equal split are left out.",
              line_chart({.title = "Each worker's share of the batch",
                          .summary = summary,
                          .x_label = "step",
                          .y_label = "share",
                          .series = std::move(all),
                          .stacked = true,
                          .percent = true}));
}

std::string step_times(const Run& run, const Figures& figures) {
  Series measured{"measured", 0}, predicted{"predicted", 1, LineStyle::kDashed};
  Series baseline{"baseline (equal split)", 3, LineStyle::kMarks};
  double longest = 0;
  for (const StepMetrics& step : run.metrics.steps) {
    const double x = static_cast<double>(step.step);
    (step.baseline ? baseline : measured).add(x, step.step_seconds * 1e3);
    longest = std::max(longest, step.step_seconds * 1e3);
    if (step.predicted_seconds && !step.baseline) {
      predicted.add(x, *step.predicted_seconds * 1e3);
      longest = std::max(longest, *step.predicted_seconds * 1e3);
    }
  }
  LineChart chart{.title = "Step time",
                  .summary = "Measured and predicted step time by step, baseline steps with the equal split marked.",
                  .x_label = "step",
                  .y_label = "milliseconds",
                  .series = {measured, predicted, baseline},
                  .from_zero = true};
  std::erase_if(chart.series, [](const Series& series) { return series.x.empty(); });
  if (chart.series.empty()) return "";
  // One stall, such as for a checkpoint, must not flatten all the rest.
  double typical = 0;
  for (const auto* step : {&figures.balanced, &figures.equal}) {
    if (*step) typical = std::max(typical, (*step)->seconds * 1e3);
  }
  std::string hint;
  if (typical > 0 && longest > 2 * typical) {
    const double unit = std::pow(10, std::floor(std::log10(typical)));
    chart.y_limit = std::ceil(2 * typical / unit) * unit;
    hint = fmt::format("The longest step took {} and reaches beyond the chart.", format_seconds(longest / 1e3));
  }
  return card("Step time", hint, line_chart(chart));
}

}  // namespace

double Smoothing::add(double value, double weight) {
  if (std::isfinite(value)) {
    sum_ = keep_ * sum_ + (1 - keep_) * weight * value;
    weight_ = keep_ * weight_ + (1 - keep_) * weight;
  }
  return weight_ > 0 ? sum_ / weight_ : value;
}

std::string run_curves(const Run& run, const Figures& figures) {
  return learning(run) + learning_rate(run) + samples_per_second(run, figures) + step_times(run, figures) + shares(run);
}

}  // namespace motley::report
