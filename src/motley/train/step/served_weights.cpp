// Between named tensors and the flat arrays of a server.
#include "motley/train/step/served_weights.h"

#include <cstring>
#include <unordered_map>

namespace motley::train {
namespace {

constexpr const char* kStep = "step";

std::vector<std::string> list_fields(kernels::UpdateRule rule) {
  switch (kernels::state_arrays(rule)) {
    case 1:
      return {"momentum_buffer"};
    case 2:
      return {"exp_avg", "exp_avg_sq"};
    default:
      return {};
  }
}

}  // namespace

ServedWeights::ServedWeights(ps::ServerReducer& server, const nn::GradientBuckets& buckets, kernels::UpdateRule rule)
    : server_(server), buckets_(buckets), fields_(list_fields(rule)) {}

torch::Tensor ServedWeights::view(const nn::GradientBuckets::Place& place, const float* bucket) const {
  const torch::Tensor& parameter = place.parameter.tensor;
  return torch::from_blob(const_cast<float*>(bucket) + place.offset, parameter.sizes(), torch::kFloat32);
}

Result<std::unique_ptr<ServedWeights>> ServedWeights::begin(ps::ServerReducer& server,
                                                            const nn::GradientBuckets& buckets,
                                                            const nn::Optimizer& optimizer, kernels::UpdateRule rule,
                                                            const Deadline& deadline) {
  std::unique_ptr<ServedWeights> served(new ServedWeights(server, buckets, rule));
  std::unordered_map<std::string, torch::Tensor> state;
  for (const nn::NamedTensor& tensor : optimizer.state()) {
    state.emplace(tensor.name, tensor.tensor);
  }
  ps::ServerState start;
  const auto zeros = [&] {
    std::vector<std::vector<float>> array;
    for (const std::size_t elements : buckets.bucket_elements()) {
      array.emplace_back(elements);
    }
    return array;
  };
  start.weights = zeros();
  start.optimizer.assign(served->fields_.size(), zeros());
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "handing the weights to the server", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : buckets.places()) {
      const std::string& name = place.parameter.name;
      const auto bucket = static_cast<std::size_t>(place.bucket);
      served->view(place, start.weights[bucket].data()).copy_(place.parameter.tensor);
      for (std::size_t field = 0; field < served->fields_.size(); ++field) {
        if (const auto found = state.find(name + "." + served->fields_[field]); found != state.end()) {
          served->view(place, start.optimizer[field][bucket].data()).copy_(found->second);
        }
      }
      if (const auto found = state.find(name + "." + kStep); found != state.end()) {
        start.updates = static_cast<std::uint64_t>(found->second.item<std::int64_t>());
      }
    }
  }));
  MOTLEY_TRY(server.load(start, deadline));
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "binding the weights to the exchange's memory", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : buckets.places()) {
      torch::Tensor parameter = place.parameter.tensor;
      if (parameter.device().is_cpu()) {
        parameter.set_data(served->view(place, server.weights(place.bucket).data()));
      }
    }
  }));
  return served;
}

Status ServedWeights::fetch(int bucket) {
  return nn::catch_torch(ErrorCode::kInternal, "copying weights to the device", [&] {
    const torch::NoGradGuard no_grad;
    for (const auto& place : buckets_.places()) {
      torch::Tensor parameter = place.parameter.tensor;
      if (place.bucket == bucket && !parameter.device().is_cpu()) {
        parameter.copy_(view(place, server_.weights(bucket).data()));
      }
    }
  });
}

Result<nn::NamedTensors> ServedWeights::optimizer_state(const Deadline& deadline) {
  MOTLEY_ASSIGN(const ps::ServerState state, server_.save(deadline));
  nn::NamedTensors tensors;
  if (state.updates == 0) {
    return tensors;
  }
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "reading the optimizer's state", [&] {
    for (const auto& place : buckets_.places()) {
      for (std::size_t field = 0; field < fields_.size(); ++field) {
        const float* values = state.optimizer[field][static_cast<std::size_t>(place.bucket)].data();
        tensors.push_back({place.parameter.name + "." + fields_[field], view(place, values).clone()});
      }
      if (fields_.size() == 2) {
        tensors.push_back({place.parameter.name + "." + kStep,
                           torch::tensor(static_cast<std::int64_t>(state.updates), torch::kInt64)});
      }
    }
  }));
  return tensors;
}

}  // namespace motley::train
