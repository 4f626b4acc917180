#include "motley/nn/stage.h"

#include <algorithm>

namespace motley::nn {

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
  const std::vector<std::int64_t> expected = network_->sample_shape();
  if (inputs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: forward was given no input", name());
  }
  if (expected.empty()) {
    return {};
  }
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
    if (!training_ || options_.recompute) {
      const torch::NoGradGuard no_grad;
      if (training_) {
        kept.random = RandomState::capture(options_.device);
      }
      Tensors outputs = run(kept.inputs);
      if (training_) {
        kept_.emplace(micro_batch, std::move(kept));
      }
      return outputs;
    }
    kept.outputs = run(kept.inputs);
    Tensors outputs;
    for (const torch::Tensor& output : kept.outputs) {
      outputs.push_back(output.detach());
    }
    kept_.emplace(micro_batch, std::move(kept));
    return outputs;
  });
}

Tensors as_leaves(const Tensors& values) {
  Tensors leaves;
  for (const torch::Tensor& value : values) {
    leaves.push_back(value.detach().requires_grad_(value.requires_grad()));
  }
  return leaves;
}

Result<Tensors> Stage::backward(std::int64_t micro_batch, const Tensors& output_gradients) {
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
      for (const NamedTensor& buffer : buffers_) {
        buffers_before.push_back(buffer.tensor.clone());
      }
      const RandomState now = RandomState::capture(options_.device);
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
    if (!outputs.empty()) {
      torch::autograd::backward(outputs, gradients);
    }
    for (std::size_t i = 0; i < buffers_before.size(); ++i) {
      buffers_[i].tensor.copy_(buffers_before[i]);
    }
    Tensors input_gradients;
    if (options_.input_gradients) {
      for (const torch::Tensor& input : kept.inputs) {
        input_gradients.push_back(input.grad());
      }
    }
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
  return copy_values(this->state(), state, "the network " + name());
}

std::int64_t Stage::parameter_count() const {
  std::int64_t count = 0;
  for (const NamedTensor& parameter : parameters_) {
    count += parameter.tensor.numel();
  }
  return count;
}

Status copy_values(const NamedTensors& target, const NamedTensors& source, const std::string& what) {
  std::unordered_map<std::string, torch::Tensor> by_name;
  for (const NamedTensor& tensor : source) {
    by_name.emplace(tensor.name, tensor.tensor);
  }
  for (const NamedTensor& own : target) {
    const auto found = by_name.find(own.name);
    if (found == by_name.end()) {
      return fail(ErrorCode::kCorrupt, "{} has a tensor '{}', which is missing in what was loaded", what, own.name);
    }
    const torch::Tensor& given = found->second;
    if (given.sizes() != own.tensor.sizes() || given.scalar_type() != own.tensor.scalar_type()) {
      return fail(ErrorCode::kCorrupt, "tensor '{}' of {} is {} {}, and {} {} was loaded", own.name, what,
                  c10::toString(own.tensor.scalar_type()), format_shape(own.tensor.sizes()),
                  c10::toString(given.scalar_type()), format_shape(given.sizes()));
    }
  }
  if (by_name.size() > target.size()) {
    for (const NamedTensor& own : target) {
      by_name.erase(own.name);
    }
    return fail(ErrorCode::kCorrupt, "a tensor '{}' was loaded, which {} does not have", by_name.begin()->first, what);
  }
  return catch_torch(ErrorCode::kInternal, "copying values into " + what, [&] {
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& own : target) {
      own.tensor.copy_(by_name.at(own.name));
    }
  });
}

}  // namespace motley::nn
