#include "motley/bind/served_parameters.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>

namespace motley::bind {

Result<std::shared_ptr<ServedParameters>> ServedParameters::join(std::shared_ptr<net::Session> session,
                                                                 const ps::ServerOptions& options,
                                                                 const nn::NamedTensors& parameters,
                                                                 std::size_t bucket_bytes, BeginStep begin_step,
                                                                 double seconds) {
  MOTLEY_ASSIGN(auto buckets, nn::GradientBuckets::create(parameters, bucket_bytes));
  MOTLEY_ASSIGN(auto reducer, ps::ServerReducer::create(*session, options));
  MOTLEY_TRY(reducer->prepare({.bucket_elements = buckets->bucket_elements()}, Deadline::after(seconds)));
  std::vector<std::span<std::byte>> memory;
  for (int bucket = 0; bucket < buckets->count(); ++bucket) memory.push_back(reducer->buffer(bucket));
  std::shared_ptr<ServedParameters> served(
      new ServedParameters(std::move(session), std::move(reducer), std::move(buckets), std::move(begin_step)));
  MOTLEY_TRY(served->buckets_->bind(memory, served));
  served->buckets_->zero();
  return served;
}

// A parameter's values in a bucket, laid out as its gradient is. The memory stays as long as the tensor does.
at::Tensor ServedParameters::view(const nn::GradientBuckets::Place& place, const float* bucket) {
  const at::Tensor& parameter = place.parameter.tensor;
  return at::from_blob(
      const_cast<float*>(bucket) + place.offset, parameter.sizes(),
      at::infer_dense_strides(parameter.sizes(), parameter.strides()), [owner = shared_from_this()](void*) {},
      at::kFloat);
}

Status ServedParameters::load(const State& state, double seconds) {
  std::vector<std::vector<float>> zeros;
  for (const std::size_t elements : buckets_->bucket_elements()) zeros.emplace_back(elements);
  ps::ServerState start{
      .updates = state.updates, .weights = zeros, .optimizer = std::vector(state.arrays.size(), zeros)};
  const auto& places = buckets_->places();
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "handing weights to the server", [&] {
    const at::NoGradGuard no_grad;
    for (std::size_t index = 0; index < places.size(); ++index) {
      const auto bucket = static_cast<std::size_t>(places[index].bucket);
      view(places[index], start.weights[bucket].data()).copy_(places[index].parameter.tensor);
      for (std::size_t array = 0; array < state.arrays.size(); ++array) {
        view(places[index], start.optimizer[array][bucket].data()).copy_(state.arrays[array][index]);
      }
    }
  }));
  MOTLEY_TRY(reducer_->load(start, Deadline::after(seconds)));
  return nn::catch_torch(ErrorCode::kInternal, "binding weights to the server's memory", [&] {
    for (const auto& place : places) {
      const at::Tensor& parameter = place.parameter.tensor;
      if (parameter.is_cpu()) parameter.set_data(view(place, reducer_->weights(place.bucket).data()));
    }
  });
}

void ServedParameters::arm() {
  ++number_;
  versions_.assign(buckets_->places().size(), {});
  buckets_->arm([this](int bucket) { return announce(bucket); });
}

Status ServedParameters::announce(int bucket) {
  if (bucket == 0) {
    const Step step = begin_step_();
    weight_ = step.weight;
    reducer_->set_learning_rate(step.learning_rate);
  }
  announced_at_ = monotonic_seconds();
  const auto& places = buckets_->places();
  for (std::size_t index = 0; index < places.size(); ++index) {
    const at::Tensor& gradient = places[index].parameter.tensor.grad();
    if (places[index].bucket == bucket && gradient.defined()) versions_[index] = gradient._version();
  }
  return reducer_->start(number_, bucket, weight_);
}

Status ServedParameters::flush() {
  MOTLEY_TRY(buckets_->flush());  // refuses a second backward pass, which changes gradients, too
  const auto& places = buckets_->places();
  for (std::size_t index = 0; index < places.size(); ++index) {
    const at::Tensor& gradient = places[index].parameter.tensor.grad();
    if (versions_[index] && gradient.defined() && gradient._version() != *versions_[index]) {
      return fail(ErrorCode::kInvalidInput,
                  "the gradient of {} was changed after backward, which had sent it already: clip by max_grad_norm= of "
                  "the optimizer, and scale the loss and not its gradient",
                  places[index].parameter.name);
    }
  }
  return {};
}

Status ServedParameters::wait(double seconds) {
  const Deadline deadline = Deadline::after(seconds);
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) {
    MOTLEY_TRY(reducer_->wait(bucket, deadline));
    MOTLEY_TRY(fetch(bucket));
  }
  if (reducer_->updates_weights()) buckets_->zero();
  return {};
}

// What came for a bucket goes to the parameters' device.
Status ServedParameters::fetch(int bucket) {
  if (!reducer_->updates_weights()) return buckets_->fetch(bucket);
  return nn::catch_torch(ErrorCode::kInternal, "copying weights to the device", [&] {
    const at::NoGradGuard no_grad;
    for (const auto& place : buckets_->places()) {
      const at::Tensor& parameter = place.parameter.tensor;
      if (place.bucket == bucket && !parameter.is_cpu()) {
        parameter.copy_(view(place, reducer_->weights(bucket).data()));
      }
    }
  });
}

Result<ServedParameters::State> ServedParameters::save(double seconds) {
  MOTLEY_ASSIGN(const ps::ServerState saved, reducer_->save(Deadline::after(seconds)));
  State state{.updates = saved.updates, .arrays = std::vector<nn::Tensors>(saved.optimizer.size())};
  MOTLEY_TRY(nn::catch_torch(ErrorCode::kInternal, "reading the optimizer's state", [&] {
    for (const auto& place : buckets_->places()) {
      for (std::size_t array = 0; array < saved.optimizer.size(); ++array) {
        const float* values = saved.optimizer[array][static_cast<std::size_t>(place.bucket)].data();
        state.arrays[array].push_back(view(place, values).to(place.parameter.tensor.device(), at::kFloat, false, true));
      }
    }
  }));
  return state;
}

void ServedParameters::leave() {
  if (!buckets_) return;
  for (const auto& place : buckets_->places()) {
    if (place.parameter.tensor.is_cpu()) place.parameter.tensor.set_data(place.parameter.tensor.detach().clone());
  }
  buckets_.reset();
  reducer_->leave();
}

}  // namespace motley::bind
