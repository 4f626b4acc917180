// BatchNorm among workers: each normalises by the statistics of its own samples, and the running statistics, which
// evaluation uses, are combined so that all workers hold those of all samples.
//
// A layer's running values move as r' = k r + (1 - k) s, where s is the mean (or the unbiased variance) of what the
// worker saw and k = (1 - momentum)^batches. From r and r' follows s, and over workers with n_i samples and N = sum n_i
//
//     mean = sum n_i mean_i / N        var = sum n_i (var_i + mean_i^2) / N - mean^2
//
// so that the offsets between the workers' means are part of the variance. That var_i is unbiased leaves a relative
// difference of at most 1 / (values a channel of the smallest part) from one large batch. The combined statistics enter
// the running values once a step, however many workers and micro-batches it had.
#pragma once

#include <span>
#include <vector>

#include "motley/nn/stage.h"

namespace motley::nn {

bool has_batch_norm(const Stage& stage);

// Running means and variances of all layers, layer by layer; for comparing, sending and setting them.
std::vector<double> read_running_statistics(const Stage& stage);
// The vector must be of the size that read_running_statistics gives.
void write_running_statistics(Stage& stage, std::span<const double> values);

class BatchNormAverage {
 public:
  explicit BatchNormAverage(const Stage& stage);

  // Remembers the running values, which are the same on all workers. Before the first micro-batch of a step.
  void begin_step();

  // This worker's part of the sums over all workers, in the same layout everywhere; all zero where it had no samples.
  // After the last micro-batch. `samples` is the worker's number in the step.
  std::vector<double> contribution(double samples) const;

  // Sets the running values from the sum of all workers' contributions: bitwise the same where the sums are.
  void finish_step(std::span<const double> sums);

 private:
  std::vector<BatchNormLayer> layers_;
  std::vector<std::vector<double>> before_;  // a layer: means, then variances
  std::vector<double> batches_before_;       // num_batches_tracked
};

}  // namespace motley::nn
