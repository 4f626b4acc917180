// What a network is trained to make small, and its gradient at the network's outputs, from which a stage's backward
// starts.
#pragma once

#include <torch/torch.h>

#include <string>

#include "motley/base/result.h"
#include "motley/nn/runtime.h"

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

// The sum alone, for evaluation.
Result<torch::Tensor> loss_sum(Loss loss, const torch::Tensor& outputs, const torch::Tensor& targets);

}  // namespace motley::nn
