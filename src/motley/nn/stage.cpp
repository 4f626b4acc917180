#include "motley/nn/stage.h"

#include <algorithm>
#include <cmath>

namespace motley::nn {
namespace {

// Means, then variances.
std::vector<double> read_statistics(const BatchNormLayer& layer) {
  const torch::Tensor both =
      torch::cat({layer.running_mean.flatten(), layer.running_var.flatten()}).to(torch::kCPU, torch::kFloat64);
  return {both.data_ptr<double>(), both.data_ptr<double>() + both.numel()};
}

double count_batches(const BatchNormLayer& layer) {
  return layer.num_batches_tracked.defined() ? layer.num_batches_tracked.item<double>() : 0;
}

void write_statistics(const BatchNormLayer& layer, const std::vector<double>& values, double batches) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor both = torch::tensor(values, torch::kFloat64).view({2, -1});
  layer.running_mean.copy_(both[0]);
  layer.running_var.copy_(both[1]);
  if (layer.num_batches_tracked.defined()) layer.num_batches_tracked.fill_(batches);
}

// The share of the old value that is in the new one after `now - before` batches.
double kept_share(const BatchNormLayer& layer, double before, double now) {
  if (!layer.momentum) return before / std::max(now, 1.0);
  // A layer that does not count its batches had one.
  return std::pow(1 - *layer.momentum, layer.num_batches_tracked.defined() ? now - before : 1);
}

}  // namespace

Stage::Stage(std::unique_ptr<Network> network, const StageOptions& options)
    : network_(std::move(network)),
      options_(options),
      parameters_(network_->parameters()),
      buffers_(network_->buffers()) {}

Result<std::unique_ptr<Stage>> Stage::create(std::unique_ptr<Network> network, const StageOptions& options) {
  return catch_torch(ErrorCode::kUnavailable, "moving the network to " + options.device.str(), [&] {
    network->to(options.device, options.dtype);
    network->train(true);
    return std::unique_ptr<Stage>(new Stage(std::move(network), options));
  });
}

Status Stage::check_sample_shape(const Tensors& inputs) const {
  const std::vector<std::int64_t>& expected = network_->sample_shape();
  if (inputs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: forward was given no input", name());
  }
  if (expected.empty()) return {};
  const c10::IntArrayRef given = inputs.front().sizes();
  if (given.empty() || !std::ranges::equal(given.slice(1), expected)) {
    return fail(ErrorCode::kInvalidInput,
                "{}: expects samples of shape {} (model.input_shape) and was given a batch of shape {}", name(),
                format_shape(expected), format_shape(given));
  }
  return {};
}

Tensors Stage::run(const Tensors& inputs) {
  const Autocast autocast(options_.device, options_.autocast);
  return network_->forward(inputs);
}

Result<Tensors> Stage::forward(std::int64_t micro_batch, const Tensors& inputs) {
  MOTLEY_TRY(check_sample_shape(inputs));
  if (training_ && kept_.contains(micro_batch)) {
    return fail(ErrorCode::kInternal, "{}: forward of micro-batch {} was called twice without backward", name(),
                micro_batch);
  }
  return catch_torch(ErrorCode::kInvalidInput, name() + ": forward", [&] {
    Kept kept;
    for (const torch::Tensor& input : inputs) {
      const bool floating = input.is_floating_point();
      kept.inputs.push_back(input.detach().to(options_.device, floating ? options_.dtype : input.scalar_type()));
      if (training_ && options_.input_gradients && floating) {
        kept.inputs.back() = kept.inputs.back().detach().requires_grad_();
      }
    }
    Tensors outputs;
    if (training_ && !options_.recompute) {
      kept.outputs = run(kept.inputs);
      for (const torch::Tensor& output : kept.outputs) outputs.push_back(output.detach());
    } else {
      const torch::NoGradGuard no_grad;
      if (training_) kept.random.emplace(options_.device);
      outputs = run(kept.inputs);
    }
    if (training_) kept_.emplace(micro_batch, std::move(kept));
    return outputs;
  });
}

Tensors as_leaves(const Tensors& values) {
  Tensors leaves;
  for (const torch::Tensor& value : values) leaves.push_back(value.detach().requires_grad_(value.requires_grad()));
  return leaves;
}

Result<Tensors> Stage::backward(std::int64_t micro_batch, const Tensors& output_gradients, bool adds) {
  auto node = kept_.extract(micro_batch);
  if (node.empty()) {
    return fail(ErrorCode::kInternal, "{}: backward of micro-batch {}, which had no forward in training mode", name(),
                micro_batch);
  }
  Kept& kept = node.mapped();

  // A second forward would move running statistics a second time: they are put back after backward, and not before it,
  // since autograd refuses tensors that changed after it saved them.
  Tensors buffers_before;
  if (kept.random) {
    MOTLEY_TRY(catch_torch(ErrorCode::kInternal, name() + ": recomputation", [&] {
      for (const NamedTensor& buffer : buffers_) buffers_before.push_back(buffer.tensor.clone());
      const RandomState now(options_.device);
      kept.random->restore();
      kept.outputs = run(kept.inputs);
      now.restore();
    }));
  }

  if (output_gradients.size() != kept.outputs.size()) {
    return fail(ErrorCode::kInternal, "{}: backward was given {} gradients for {} outputs", name(),
                output_gradients.size(), kept.outputs.size());
  }
  for (std::size_t i = 0; i < output_gradients.size(); ++i) {
    if (output_gradients[i].defined() && output_gradients[i].sizes() != kept.outputs[i].sizes()) {
      return fail(ErrorCode::kInternal, "{}: the gradient of output {} has shape {}, the output {}", name(), i,
                  format_shape(output_gradients[i].sizes()), format_shape(kept.outputs[i].sizes()));
    }
  }

  return catch_torch(ErrorCode::kInternal, name() + ": backward", [&] {
    Tensors outputs;
    Tensors gradients;
    for (std::size_t i = 0; i < output_gradients.size(); ++i) {
      if (output_gradients[i].defined() && kept.outputs[i].requires_grad()) {
        outputs.push_back(kept.outputs[i]);
        gradients.push_back(output_gradients[i].to(kept.outputs[i].options()));
      }
    }
    Tensors leaves;  // that get their gradients; all, where none is named
    if (!adds) std::ranges::copy_if(kept.inputs, std::back_inserter(leaves), &torch::Tensor::requires_grad);
    if (!outputs.empty() && (adds || !leaves.empty())) {
      torch::autograd::backward(outputs, gradients, std::nullopt, false, leaves);
    }
    for (std::size_t i = 0; i < buffers_before.size(); ++i) buffers_[i].tensor.copy_(buffers_before[i]);
    Tensors input_gradients;
    if (!options_.input_gradients) return input_gradients;
    for (const torch::Tensor& input : kept.inputs) input_gradients.push_back(input.grad());
    return input_gradients;
  });
}

void Stage::train(bool on) {
  training_ = on;
  network_->train(on);
}

NamedTensors Stage::state() const {
  NamedTensors all = parameters_;
  all.insert(all.end(), buffers_.begin(), buffers_.end());
  return all;
}

Status Stage::load_state(const NamedTensors& state) {
  std::unordered_map<std::string, torch::Tensor> by_name;
  for (const NamedTensor& tensor : state) by_name.emplace(tensor.name, tensor.tensor);
  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  for (const auto& [tensor_name, own] : this->state()) {
    const auto node = by_name.extract(tensor_name);
    if (node.empty()) {
      return fail(ErrorCode::kCorrupt, "the network {} has a tensor '{}', which is missing in what was loaded", name(),
                  tensor_name);
    }
    const torch::Tensor& given = node.mapped();
    if (given.sizes() != own.sizes() || given.scalar_type() != own.scalar_type()) {
      return fail(ErrorCode::kCorrupt, "tensor '{}' of the network {} is {} {}, and {} {} was loaded", tensor_name,
                  name(), c10::toString(own.scalar_type()), format_shape(own.sizes()),
                  c10::toString(given.scalar_type()), format_shape(given.sizes()));
    }
    copies.emplace_back(own, given);
  }
  if (!by_name.empty()) {
    return fail(ErrorCode::kCorrupt, "a tensor '{}' was loaded, which the network {} does not have",
                by_name.begin()->first, name());
  }
  return catch_torch(ErrorCode::kInternal, "copying values into the network " + name(), [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& [own, given] : copies) own.copy_(given);
  });
}

std::int64_t Stage::parameter_count() const {
  std::int64_t count = 0;
  for (const NamedTensor& parameter : parameters_) count += parameter.tensor.numel();
  return count;
}

BatchNormAverage::BatchNormAverage(const Stage& stage) : layers_(stage.batch_norms()) {
  begin_step();
  is_in_step_ = false;
}

void BatchNormAverage::begin_step() {
  before_.clear();
  for (const BatchNormLayer& layer : layers_) before_.push_back({read_statistics(layer), count_batches(layer)});
  is_in_step_ = true;
}

void BatchNormAverage::undo_step() {
  for (std::size_t i = 0; i < layers_.size(); ++i) write_statistics(layers_[i], before_[i].values, before_[i].batches);
  is_in_step_ = false;
}

NamedTensors BatchNormAverage::before_step(NamedTensors state) const {
  if (!is_in_step_) return state;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const BatchNormLayer& layer = layers_[i];
    const torch::Tensor both = torch::tensor(before_[i].values, torch::kFloat64).view({2, -1});
    for (NamedTensor& own : state) {
      const auto is = [&own](const torch::Tensor& other) {
        return other.defined() && other.data_ptr() == own.tensor.data_ptr();
      };
      if (is(layer.running_mean)) own.tensor = both[0].to(own.tensor.options());
      if (is(layer.running_var)) own.tensor = both[1].to(own.tensor.options());
      if (is(layer.num_batches_tracked)) own.tensor = torch::full_like(own.tensor, before_[i].batches);
    }
  }
  return state;
}

// Layout: the number of samples, then a layer n mean_i of all channels and n (var_i + mean_i^2) of all channels.
std::vector<double> BatchNormAverage::contribution(double samples) const {
  std::vector<double> sums;
  sums.push_back(samples);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& [before, batches] = before_[i];
    const double kept = kept_share(layers_[i], batches, count_batches(layers_[i]));
    const bool has_seen = samples > 0 && kept < 1;
    std::vector<double> seen = read_statistics(layers_[i]);
    const std::size_t channels = seen.size() / 2;
    for (std::size_t c = 0; c < seen.size(); ++c) seen[c] = has_seen ? (seen[c] - kept * before[c]) / (1 - kept) : 0;
    // A channel of one value has no variance: what was seen counts as nothing.
    if (!std::ranges::all_of(seen, [](double value) { return std::isfinite(value); })) return contribution(0);
    for (std::size_t c = 0; c < channels; ++c) seen[channels + c] += seen[c] * seen[c];
    for (const double value : seen) sums.push_back(samples * value);
  }
  return sums;
}

void BatchNormAverage::finish_step(std::span<const double> sums) {
  const double samples = sums.front();
  if (samples <= 0) return undo_step();
  sums = sums.subspan(1);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto& [before, batches] = before_[i];
    const std::size_t channels = before.size() / 2;
    const double kept = kept_share(layers_[i], batches, batches + 1);
    std::vector<double> after(2 * channels);
    for (std::size_t c = 0; c < channels; ++c) {
      const double mean = sums[c] / samples;
      // Rounding may leave the variance of a constant channel a little below zero.
      const double variance = std::max(0.0, sums[channels + c] / samples - mean * mean);
      after[c] = kept * before[c] + (1 - kept) * mean;
      after[channels + c] = kept * before[channels + c] + (1 - kept) * variance;
    }
    sums = sums.subspan(after.size());
    write_statistics(layers_[i], after, batches + 1);
  }
  is_in_step_ = false;
}

}  // namespace motley::nn
