// How well a network does on data it did not train on, as sums that add up over batches and over workers: parts of any
// size give exactly the value of the whole.
#pragma once

#include <torch/torch.h>

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/nn/loss.h"

namespace motley::nn {

enum class Metric {
  kAccuracy,           // share of samples (or of their positions) whose largest output is the target's class; for bce:
                       // of values whose output lies on the target's side (probability above one half)
  kMeanAbsoluteError,  // mean of |output - target| over all values
  kAuc,                // of two classes: the chance that a sample of class 1 is given a higher probability than one of
                       // class 0, ties counted half; probabilities are told apart to 1 / kAucBins
};

inline constexpr std::int64_t kAucBins = 1 << 13;

// "accuracy", "mean-absolute-error" or "auc".
Result<Metric> parse_metric(const std::string& text);
const char* to_string(Metric metric);

// The metrics that suit a loss: accuracy, or for mse the mean absolute error; and for two classes also the area under
// the ROC curve.
std::vector<Metric> default_metrics(Loss loss, std::int64_t classes = 0);

struct NamedValue {
  std::string name;  // "loss", "accuracy", "mean_absolute_error", "auc": as in metrics.jsonl
  double value = 0;
};

class Evaluation {
 public:
  Evaluation(Loss loss, std::vector<Metric> metrics);

  Status add(const torch::Tensor& outputs, const torch::Tensor& targets);

  // Sum and count of the loss, then of each metric; of kAuc instead how many samples of class 0, then of class 1, have
  // a probability in each bin. To join workers, add these vectors element by element (an all-reduce in place).
  std::span<double> totals() { return totals_; }

  // The loss, then the metrics; NaN while nothing was added, and of kAuc while a class has no sample.
  std::vector<NamedValue> values() const;

 private:
  Loss loss_;
  std::vector<Metric> metrics_;
  std::vector<double> totals_;
};

}  // namespace motley::nn
