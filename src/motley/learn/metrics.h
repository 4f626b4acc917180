// How well a network does on data it did not train on, as sums that add up over batches and over workers: parts of any
// size give exactly the value of the whole.
#pragma once

#include <torch/torch.h>

#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/learn/loss.h"

namespace motley::learn {

enum class Metric {
  kAccuracy,           // share of samples (or of their positions) whose largest output is the target's class; for bce:
                       // of values whose output lies on the target's side (probability above one half)
  kMeanAbsoluteError,  // mean of |output - target| over all values
};

// "accuracy" or "mean-absolute-error".
Result<Metric> parse_metric(const std::string& text);
const char* to_string(Metric metric);

// The metrics that suit a loss when the job names none: accuracy, or for mse the mean absolute error.
std::vector<Metric> default_metrics(Loss loss);

struct NamedValue {
  std::string name;  // "loss", "accuracy", "mean_absolute_error": as in metrics.jsonl
  double value = 0;
};

class Evaluation {
 public:
  Evaluation(Loss loss, std::vector<Metric> metrics);

  Status add(const torch::Tensor& outputs, const torch::Tensor& targets);

  // Sum and count of the loss, then of each metric. To join workers, add these vectors element by element (an
  // all-reduce in place).
  std::span<double> totals() { return totals_; }

  // The loss, then the metrics: sum / count each; NaN while nothing was added.
  std::vector<NamedValue> values() const;

 private:
  Loss loss_;
  std::vector<Metric> metrics_;
  std::vector<double> totals_;
};

}  // namespace motley::learn
