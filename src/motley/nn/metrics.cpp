#include "motley/nn/metrics.h"

#include <limits>

namespace motley::nn {
namespace {

std::size_t totals_of(Metric metric) {
  return metric == Metric::kAuc ? 2 * static_cast<std::size_t>(kAucBins) : 2;
}

const char* name_of(Metric metric) {
  return metric == Metric::kAccuracy ? "accuracy" : metric == Metric::kAuc ? "auc" : "mean_absolute_error";
}

// One number a sample, which is larger the more it looks like class 1; in [0, 1].
torch::Tensor probabilities(Loss loss, const torch::Tensor& outputs) {
  const torch::Tensor values = outputs.to(torch::kFloat64);
  if (loss == Loss::kCrossEntropy) {
    TORCH_CHECK(values.dim() == 2 && values.size(1) == 2, "auc needs two outputs a sample");
    return torch::sigmoid(values.select(1, 1) - values.select(1, 0));
  }
  return torch::sigmoid(values.reshape({-1}));
}

// Of the pairs of a sample of each class, those in which class 1 has the higher bin, and half of those in one bin.
double area(std::span<const double> totals) {
  const auto bins = totals.size() / 2;
  double below = 0, ordered = 0, ones = 0;
  for (std::size_t bin = 0; bin < bins; ++bin) {
    const double zero = totals[bin], one = totals[bins + bin];
    ordered += one * (below + zero / 2);
    below += zero;
    ones += one;
  }
  return below * ones > 0 ? ordered / (below * ones) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Result<Metric> parse_metric(const std::string& text) {
  for (const Metric metric : {Metric::kAccuracy, Metric::kMeanAbsoluteError, Metric::kAuc}) {
    if (text == to_string(metric)) {
      return metric;
    }
  }
  return fail(ErrorCode::kInvalidInput, "metrics: '{}' is not known; accepted: accuracy, mean-absolute-error, auc",
              text);
}

const char* to_string(Metric metric) {
  return metric == Metric::kMeanAbsoluteError ? "mean-absolute-error" : name_of(metric);
}

std::vector<Metric> default_metrics(Loss loss, std::int64_t classes) {
  std::vector<Metric> metrics = {loss == Loss::kMse ? Metric::kMeanAbsoluteError : Metric::kAccuracy};
  if (classes == 2 && loss != Loss::kMse) {
    metrics.push_back(Metric::kAuc);
  }
  return metrics;
}

Evaluation::Evaluation(Loss loss, std::vector<Metric> metrics) : loss_(loss), metrics_(std::move(metrics)) {
  std::size_t count = 2;
  for (const Metric metric : metrics_) {
    count += totals_of(metric);
  }
  totals_.resize(count);
}

Status Evaluation::add(const torch::Tensor& outputs, const torch::Tensor& targets) {
  MOTLEY_ASSIGN(const torch::Tensor loss, loss_sum(loss_, outputs, targets));
  return catch_torch(ErrorCode::kInvalidInput, "evaluating metrics", [&] {
    const torch::NoGradGuard no_grad;
    totals_[0] += loss.item<double>();
    totals_[1] += static_cast<double>(outputs.size(0));
    std::size_t at = 2;
    const torch::Tensor here = targets.to(outputs.device());
    for (const Metric metric : metrics_) {
      const std::span<double> own = totals().subspan(at, totals_of(metric));
      at += own.size();
      if (metric == Metric::kAuc) {
        const torch::Tensor bins = (probabilities(loss_, outputs) * kAucBins).to(torch::kInt64).clamp(0, kAucBins - 1);
        const torch::Tensor places = bins + here.reshape({-1}).gt(0.5).to(torch::kInt64) * kAucBins;
        const torch::Tensor counts = torch::bincount(places, {}, 2 * kAucBins).to(torch::kCPU, torch::kFloat64);
        const auto* values = counts.data_ptr<double>();
        for (std::size_t i = 0; i < own.size(); ++i) {
          own[i] += values[i];
        }
        continue;
      }
      torch::Tensor per_value;
      if (metric == Metric::kMeanAbsoluteError) {
        TORCH_CHECK(here.numel() == outputs.numel(), "mean-absolute-error needs as many targets as outputs");
        per_value = (outputs.to(torch::kFloat64) - here.to(torch::kFloat64).view_as(outputs)).abs();
      } else if (loss_ == Loss::kCrossEntropy) {
        per_value = outputs.argmax(-1).reshape({-1}).eq(here.reshape({-1}));
      } else {
        TORCH_CHECK(here.numel() == outputs.numel(), "accuracy needs as many targets as outputs");
        const double threshold = loss_ == Loss::kBce ? 0.0 : 0.5;
        per_value = outputs.gt(threshold).eq(here.view_as(outputs).gt(0.5));
      }
      own[0] += per_value.sum(torch::kFloat64).item<double>();
      own[1] += static_cast<double>(per_value.numel());
    }
  });
}

std::vector<NamedValue> Evaluation::values() const {
  const auto ratio = [](std::span<const double> pair) {
    return pair[1] > 0 ? pair[0] / pair[1] : std::numeric_limits<double>::quiet_NaN();
  };
  const std::span<const double> all(totals_);
  std::vector<NamedValue> values{{"loss", ratio(all.first(2))}};
  std::size_t at = 2;
  for (const Metric metric : metrics_) {
    const auto own = all.subspan(at, totals_of(metric));
    at += own.size();
    values.push_back({name_of(metric), metric == Metric::kAuc ? area(own) : ratio(own)});
  }
  return values;
}

}  // namespace motley::nn
