#include "motley/learn/metrics.h"

#include <limits>

namespace motley::learn {

Result<Metric> parse_metric(const std::string& text) {
  for (const Metric metric : {Metric::kAccuracy, Metric::kMeanAbsoluteError}) {
    if (text == to_string(metric)) {
      return metric;
    }
  }
  return fail(ErrorCode::kInvalidInput, "metrics: '{}' is not known; accepted: accuracy, mean-absolute-error", text);
}

const char* to_string(Metric metric) {
  return metric == Metric::kAccuracy ? "accuracy" : "mean-absolute-error";
}

std::vector<Metric> default_metrics(Loss loss) {
  return {loss == Loss::kMse ? Metric::kMeanAbsoluteError : Metric::kAccuracy};
}

Evaluation::Evaluation(Loss loss, std::vector<Metric> metrics)
    : loss_(loss), metrics_(std::move(metrics)), totals_(2 * (1 + metrics_.size())) {}

Status Evaluation::add(const torch::Tensor& outputs, const torch::Tensor& targets) {
  MOTLEY_ASSIGN(const torch::Tensor loss, loss_sum(loss_, outputs, targets));
  return catch_torch(ErrorCode::kInvalidInput, "evaluating metrics", [&] {
    const torch::NoGradGuard no_grad;
    totals_[0] += loss.item<double>();
    totals_[1] += static_cast<double>(outputs.size(0));
    for (std::size_t i = 0; i < metrics_.size(); ++i) {
      const torch::Tensor here = targets.to(outputs.device());
      torch::Tensor per_value;
      if (metrics_[i] == Metric::kMeanAbsoluteError) {
        TORCH_CHECK(here.numel() == outputs.numel(), "mean-absolute-error needs as many targets as outputs");
        per_value = (outputs.to(torch::kFloat64) - here.to(torch::kFloat64).view_as(outputs)).abs();
      } else if (loss_ == Loss::kCrossEntropy) {
        per_value = outputs.argmax(-1).reshape({-1}).eq(here.reshape({-1}));
      } else {
        TORCH_CHECK(here.numel() == outputs.numel(), "accuracy needs as many targets as outputs");
        const double threshold = loss_ == Loss::kBce ? 0.0 : 0.5;
        per_value = outputs.gt(threshold).eq(here.view_as(outputs).gt(0.5));
      }
      totals_[2 + 2 * i] += per_value.sum(torch::kFloat64).item<double>();
      totals_[3 + 2 * i] += static_cast<double>(per_value.numel());
    }
  });
}

std::vector<NamedValue> Evaluation::values() const {
  const auto ratio = [&](std::size_t at) {
    return totals_[at + 1] > 0 ? totals_[at] / totals_[at + 1] : std::numeric_limits<double>::quiet_NaN();
  };
  std::vector<NamedValue> values{{"loss", ratio(0)}};
  for (std::size_t i = 0; i < metrics_.size(); ++i) {
    values.push_back({metrics_[i] == Metric::kAccuracy ? "accuracy" : "mean_absolute_error", ratio(2 + 2 * i)});
  }
  return values;
}

}  // namespace motley::learn
