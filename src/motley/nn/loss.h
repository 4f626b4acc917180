// What a network is trained to make small, with its gradient at the network's outputs, from which a stage's backward
// starts; and how well it does on data it did not train on, as sums that add up over batches and over workers: parts of
// any size give exactly the value of the whole.
#pragma once

#include <torch/torch.h>

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::nn {

enum class Loss {
  kCrossEntropy,  // outputs [n, classes] before softmax, targets n integers; or a class at each of a
                  // sample's positions: outputs [n, positions, classes], targets [n, positions]
  kBce,           // outputs [n] or [n, k] before the sigmoid; targets of as many values, in [0, 1]
  kMse,           // outputs and targets of as many values
};

// "cross-entropy", "bce" or "mse".
Result<Loss> parse_loss(const std::string& text);
const char* to_string(Loss loss);

struct LossOutcome {
  torch::Tensor sum;              // over the samples: scalar, float64, on the outputs' device
  double samples = 0;             // so that sum / samples is the mean loss
  torch::Tensor output_gradient;  // d(sum / divisor) / d(outputs), of the outputs' shape
};

// The loss of a micro-batch of n samples. A sample's loss is the mean over its positions (kCrossEntropy) or values. The
// gradient is that of sum / divisor: with divisor = the worker's samples in the step, the gradients of its
// micro-batches add up to that of its mean loss; with divisor = 1 to that of the sum, to be scaled when their number is
// known. Outputs in bfloat16 are computed with in float32.
Result<LossOutcome> compute_loss(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets, double divisor);

enum class Metric {
  kAccuracy,           // share of samples (or of their positions) whose largest output is the target's class; for bce:
                       // of values whose output lies on the target's side (probability above one half)
  kMeanAbsoluteError,  // mean of |output - target| over all values
  kAuc,                // of two classes: the chance that a sample of class 1 is given a higher probability than one of
                       // class 0, ties counted half; probabilities are told apart to 1 / kAucBins
};

inline constexpr std::int64_t kAucBins = 1 << 13;

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
