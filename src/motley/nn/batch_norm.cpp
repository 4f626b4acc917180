#include "motley/nn/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace motley::nn {
namespace {

// Means, then variances.
std::vector<double> read(const BatchNormLayer& layer) {
  const torch::Tensor both =
      torch::cat({layer.running_mean.flatten(), layer.running_var.flatten()}).to(torch::kCPU, torch::kFloat64);
  return {both.data_ptr<double>(), both.data_ptr<double>() + both.numel()};
}

void write(const BatchNormLayer& layer, std::span<const double> values) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor both =
      torch::from_blob(const_cast<double*>(values.data()), {static_cast<std::int64_t>(values.size())}, torch::kFloat64);
  const std::int64_t channels = layer.running_mean.numel();
  layer.running_mean.copy_(both.narrow(0, 0, channels));
  layer.running_var.copy_(both.narrow(0, channels, channels));
}

double batches(const BatchNormLayer& layer) {
  return layer.num_batches_tracked.defined() ? layer.num_batches_tracked.item<double>() : 0;
}

// The share of the old value that is in the new one after `now - before` batches.
double kept_share(const BatchNormLayer& layer, double before, double now) {
  if (!layer.momentum) {
    return before / std::max(now, 1.0);
  }
  // A layer that does not count its batches had one.
  const double passed = layer.num_batches_tracked.defined() ? now - before : 1;
  return std::pow(1 - *layer.momentum, passed);
}

}  // namespace

bool has_batch_norm(const Stage& stage) {
  return !stage.batch_norms().empty();
}

std::vector<double> read_running_statistics(const Stage& stage) {
  std::vector<double> all;
  for (const BatchNormLayer& layer : stage.batch_norms()) {
    const std::vector<double> values = read(layer);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void write_running_statistics(Stage& stage, std::span<const double> values) {
  for (const BatchNormLayer& layer : stage.batch_norms()) {
    const auto size = static_cast<std::size_t>(2 * layer.running_mean.numel());
    MOTLEY_INVARIANT(values.size() >= size, "running statistics of another network were given");
    write(layer, values.first(size));
    values = values.subspan(size);
  }
  MOTLEY_INVARIANT(values.empty(), "running statistics of another network were given");
}

BatchNormAverage::BatchNormAverage(const Stage& stage) : layers_(stage.batch_norms()) {
  begin_step();
}

void BatchNormAverage::begin_step() {
  before_.clear();
  batches_before_.clear();
  for (const BatchNormLayer& layer : layers_) {
    before_.push_back(read(layer));
    batches_before_.push_back(batches(layer));
  }
}

// Layout: the number of samples, then a layer n mean_i of all channels and n (var_i + mean_i^2) of all channels.
std::vector<double> BatchNormAverage::contribution(double samples) const {
  std::vector<double> sums;
  sums.reserve(1 + std::accumulate(before_.begin(), before_.end(), std::size_t{0},
                                   [](std::size_t size, const auto& values) { return size + values.size(); }));
  sums.push_back(samples);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::vector<double> now = read(layers_[i]);
    const std::size_t channels = now.size() / 2;
    const double kept = kept_share(layers_[i], batches_before_[i], batches(layers_[i]));
    std::vector<double> seen(now.size(), 0.0);
    if (samples > 0 && kept < 1) {
      for (std::size_t c = 0; c < now.size(); ++c) {
        seen[c] = (now[c] - kept * before_[i][c]) / (1 - kept);
      }
      for (std::size_t c = 0; c < channels; ++c) {
        seen[channels + c] += seen[c] * seen[c];
      }
    }
    for (const double value : seen) {
      sums.push_back(samples * value);
    }
  }
  return sums;
}

void BatchNormAverage::finish_step(std::span<const double> sums) {
  const double samples = sums.front();
  if (samples <= 0) {
    return;
  }
  std::size_t at = 1;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t channels = before_[i].size() / 2;
    const double kept = kept_share(layers_[i], batches_before_[i], batches_before_[i] + 1);
    std::vector<double> after(2 * channels);
    for (std::size_t c = 0; c < channels; ++c) {
      const double mean = sums[at + c] / samples;
      // Rounding may leave the variance of a constant channel a little below zero.
      const double variance = std::max(0.0, sums[at + channels + c] / samples - mean * mean);
      after[c] = kept * before_[i][c] + (1 - kept) * mean;
      after[channels + c] = kept * before_[i][channels + c] + (1 - kept) * variance;
    }
    at += 2 * channels;
    write(layers_[i], after);
    if (layers_[i].num_batches_tracked.defined()) {
      const torch::NoGradGuard no_grad;
      layers_[i].num_batches_tracked.fill_(batches_before_[i] + 1);
    }
  }
}

}  // namespace motley::nn
