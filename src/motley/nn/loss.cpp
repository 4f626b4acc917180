#include "motley/nn/loss.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "motley/nn/runtime.h"

namespace motley::nn {
namespace {

Status check_shapes(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets) {
  const std::string given = format_shape(outputs.sizes()), wanted = format_shape(targets.sizes());
  if (outputs.dim() == 0 || targets.dim() == 0 || outputs.size(0) != targets.size(0) || outputs.numel() == 0) {
    return fail(ErrorCode::kInvalidInput, "loss {}: outputs of shape {} do not fit targets of shape {}",
                to_string(loss), given, wanted);
  }
  if (loss != Loss::kCrossEntropy && outputs.numel() != targets.numel()) {
    return fail(ErrorCode::kInvalidInput,
                "loss {}: needs as many targets as outputs a sample; given: outputs {}, targets {} (is model.outputs "
                "right?)",
                to_string(loss), given, wanted);
  }
  if (loss == Loss::kCrossEntropy &&
      (outputs.dim() < 2 || targets.numel() * outputs.size(-1) != outputs.numel() || targets.is_floating_point())) {
    return fail(ErrorCode::kInvalidInput,
                "loss cross-entropy: needs outputs [samples x classes] and one integer a sample as target, or "
                "[samples x positions x classes] and one a position; given: outputs {}, targets {} {}",
                given, c10::toString(targets.scalar_type()), wanted);
  }
  return {};
}

// The mean over the samples; throws what libtorch throws, also for a class that does not exist.
torch::Tensor mean_loss(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets) {
  namespace functional = torch::nn::functional;
  if (loss == Loss::kCrossEntropy) {
    return functional::cross_entropy(outputs.flatten(0, -2), targets.reshape({-1}).to(outputs.device(), torch::kInt64));
  }
  const torch::Tensor wanted = targets.to(outputs.options()).view_as(outputs);
  return loss == Loss::kBce ? functional::binary_cross_entropy_with_logits(outputs, wanted)
                            : functional::mse_loss(outputs, wanted);
}

torch::Tensor widened(const torch::Tensor& outputs) {
  return outputs.scalar_type() == torch::kFloat64 ? outputs.detach() : outputs.detach().to(torch::kFloat32);
}

std::size_t count_totals(Metric metric) {
  return metric == Metric::kAuc ? 2 * static_cast<std::size_t>(kAucBins) : 2;
}

// Other outputs for two classes, such as a thousand of which two are used, have no order of samples.
bool has_order(Loss loss, const torch::Tensor& outputs) {
  return loss != Loss::kCrossEntropy || (outputs.dim() == 2 && outputs.size(1) == 2);
}

// One number a sample, which is larger the more it looks like class 1; in [0, 1].
torch::Tensor probabilities(Loss loss, const torch::Tensor& outputs) {
  const torch::Tensor values = outputs.to(torch::kFloat64);
  if (loss == Loss::kCrossEntropy) {
    return torch::sigmoid(values.select(1, 1) - values.select(1, 0));
  }
  return torch::sigmoid(values.reshape({-1}));
}

// Of the pairs of a sample of each class, those in which class 1 has the higher bin, and half of those in one bin.
double area(std::span<const double> totals) {
  double below = 0, ordered = 0, ones = 0;
  for (std::size_t bin = 0; bin < kAucBins; ++bin) {
    const double zero = totals[bin], one = totals[kAucBins + bin];
    ordered += one * (below + zero / 2);
    below += zero;
    ones += one;
  }
  return below * ones > 0 ? ordered / (below * ones) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Result<Loss> parse_loss(const std::string& text) {
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kBce, Loss::kMse}) {
    if (text == to_string(loss)) return loss;
  }
  return fail(ErrorCode::kInvalidInput, "loss: '{}' is not known; accepted: cross-entropy, bce, mse", text);
}

const char* to_string(Loss loss) {
  return loss == Loss::kCrossEntropy ? "cross-entropy" : loss == Loss::kBce ? "bce" : "mse";
}

Result<LossOutcome> compute_loss(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets,
                                 double divisor) {
  MOTLEY_TRY(check_shapes(loss, outputs, targets));
  return catch_torch(ErrorCode::kInvalidInput, fmt::format("loss {}", to_string(loss)), [&] {
    const double samples = static_cast<double>(outputs.size(0));
    const torch::Tensor leaf = widened(outputs).requires_grad_();
    const torch::Tensor mean = mean_loss(loss, leaf, targets);
    const torch::Tensor scale = torch::full({}, samples / divisor, mean.options());
    return LossOutcome{mean.detach().to(torch::kFloat64) * samples, samples,
                       torch::autograd::grad({mean}, {leaf}, {scale}).front()};
  });
}

std::vector<Metric> default_metrics(Loss loss, std::int64_t classes) {
  std::vector<Metric> metrics = {loss == Loss::kMse ? Metric::kMeanAbsoluteError : Metric::kAccuracy};
  if (classes == 2 && loss != Loss::kMse) metrics.push_back(Metric::kAuc);
  return metrics;
}

Evaluation::Evaluation(Loss loss, std::vector<Metric> metrics) : loss_(loss), metrics_(std::move(metrics)) {
  totals_.resize(2);
  for (const Metric metric : metrics_) totals_.resize(totals_.size() + count_totals(metric));
}

Status Evaluation::add(const torch::Tensor& outputs, const torch::Tensor& targets) {
  MOTLEY_TRY(check_shapes(loss_, outputs, targets));
  const torch::NoGradGuard no_grad;
  const double samples = static_cast<double>(outputs.size(0));
  MOTLEY_TRY(catch_torch(ErrorCode::kInvalidInput, fmt::format("loss {}", to_string(loss_)), [&] {
    totals_[0] += (mean_loss(loss_, widened(outputs), targets).to(torch::kFloat64) * samples).item<double>();
    totals_[1] += samples;
  }));
  return catch_torch(ErrorCode::kInvalidInput, "evaluating metrics", [&] {
    std::size_t at = 2;
    const torch::Tensor here = targets.to(outputs.device());
    for (const Metric metric : metrics_) {
      const std::span<double> own = totals().subspan(at, count_totals(metric));
      at += own.size();
      if (metric == Metric::kAuc && !has_order(loss_, outputs)) continue;  // it is not a number then
      if (metric == Metric::kAuc) {
        const torch::Tensor bins = (probabilities(loss_, outputs) * kAucBins).to(torch::kInt64).clamp(0, kAucBins - 1);
        const torch::Tensor places = bins + here.reshape({-1}).gt(0.5).to(torch::kInt64) * kAucBins;
        const torch::Tensor counts = torch::bincount(places, {}, 2 * kAucBins).to(torch::kCPU, torch::kFloat64);
        std::transform(own.begin(), own.end(), counts.data_ptr<double>(), own.begin(), std::plus<>());
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
    const auto own = all.subspan(at, count_totals(metric));
    at += own.size();
    values.push_back(metric == Metric::kAuc        ? NamedValue{"auc", area(own)}
                     : metric == Metric::kAccuracy ? NamedValue{"accuracy", ratio(own)}
                                                   : NamedValue{"mean_absolute_error", ratio(own)});
  }
  return values;
}

}  // namespace motley::nn
