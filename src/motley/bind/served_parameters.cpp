#include "motley/bind/served_parameters.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace motley::bind {

Result<std::shared_ptr<ServedParameters>> ServedParameters::join(std::shared_ptr<net::Session> session,
                                                                 const ps::ServerOptions& options,
                                                                 const nn::NamedTensors& parameters,
                                                                 std::size_t bucket_bytes, BeginStep begin_step,
                                                                 double seconds) {
  MOTLEY_ASSIGN(auto buckets, nn::GradientBuckets::create(parameters, bucket_bytes));
  MOTLEY_ASSIGN(auto reducer, ps::ServerReducer::create(*session, options));
  MOTLEY_TRY(reducer->prepare({.bucket_elements = buckets->bucket_elements()}, Deadline::after(seconds)));
  const auto memory = collective::list_buffers(*reducer, buckets->count());
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
  const at::Device device = places.front().parameter.tensor.device();
  if (!device.is_cpu()) return bind_device(device);
  return nn::catch_torch(ErrorCode::kInternal, "binding weights to the server's memory", [&] {
    for (const auto& place : places) {
      place.parameter.tensor.set_data(view(place, reducer_->weights(place.bucket).data()));
    }
  });
}

// Parameters become views of flat buckets, so that each bucket is one copy.
Status ServedParameters::bind_device(at::Device device) {
  if (!reducer_->updates_weights()) return {};
  auto pinned = nn::PinnedRegion::pin(device.type(), reducer_->weight_memory());
  if (pinned) pinned_ = std::move(*pinned);
  MOTLEY_ASSIGN(copies_, nn::DeviceCopies::create(device, pinned.has_value()));
  return nn::catch_torch(ErrorCode::kInternal, "binding weights to buckets on the device", [&] {
    const at::NoGradGuard no_grad;
    for (const std::size_t elements : buckets_->bucket_elements()) {
      weights_.push_back(at::empty({static_cast<std::int64_t>(elements)}, at::dtype(at::kFloat).device(device)));
    }
    for (const auto& place : buckets_->places()) {
      const at::Tensor& parameter = place.parameter.tensor;
      const at::Tensor values = weights_[static_cast<std::size_t>(place.bucket)].as_strided(
          parameter.sizes(), at::infer_dense_strides(parameter.sizes(), parameter.strides()), place.offset);
      values.copy_(parameter);
      parameter.set_data(values);
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
    next_fetch_ = 0;
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
  MOTLEY_TRY(reducer_->start(number_, bucket, weight_));
  return copies_ ? fetch_come() : Status();
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
  for (; next_fetch_ < buckets_->count(); ++next_fetch_) {
    MOTLEY_TRY(reducer_->wait(next_fetch_, deadline));
    MOTLEY_TRY(fetch(next_fetch_));
  }
  MOTLEY_TRY(finish_copies());
  if (reducer_->updates_weights()) buckets_->zero();
  return {};
}

double ServedParameters::squares() const {
  double sum = 0;
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) sum += reducer_->squares(bucket);
  return sum;
}

Status ServedParameters::take_back(double factor, double seconds) {
  // Their memory is written anew.
  if (filled_) {
    MOTLEY_TRY(
        nn::catch_torch(ErrorCode::kInternal, "waiting for weights on the device", [&] { filled_->synchronize(); }));
  }
  reducer_->take_back(factor);
  next_fetch_ = 0;
  for (int bucket = 0; bucket < buckets_->count(); ++bucket) MOTLEY_TRY(reducer_->start(number_, bucket, weight_));
  return wait(seconds);
}

// What came for a bucket goes to the parameters' device. Autograd has finished with these parameters, as it has given
// their gradients; so weights may change while the device still computes those of earlier layers.
Status ServedParameters::fetch(int bucket) {
  if (!reducer_->updates_weights()) return buckets_->fetch(bucket);
  if (!copies_) return {};
  const at::Tensor& into = weights_[static_cast<std::size_t>(bucket)];
  const at::Tensor from = at::from_blob(
      const_cast<float*>(reducer_->weights(bucket).data()), into.sizes(), [owner = shared_from_this()](void*) {},
      at::kFloat);
  if (copies_->overlap()) return copies_->fill({{from, into}}, [] {});
  return nn::catch_torch(ErrorCode::kInternal, "copying weights to the device", [&] {
    const at::NoGradGuard no_grad;
    into.copy_(from);
  });
}

// The weights that have come while the device computes.
Status ServedParameters::fetch_come() {
  while (next_fetch_ < buckets_->count() && reducer_->has_come(next_fetch_)) {
    MOTLEY_TRY(reducer_->wait(next_fetch_, Deadline::after(0)));
    MOTLEY_TRY(fetch(next_fetch_++));
  }
  return {};
}

// What is computed from now on sees the weights.
Status ServedParameters::finish_copies() {
  if (!copies_ || !copies_->overlap()) return {};
  MOTLEY_ASSIGN(filled_, copies_->filled());
  return nn::catch_torch(ErrorCode::kInternal, "waiting for weights on the device", [&] {
    const at::Device device = copies_->device();
    filled_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
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
  if (filled_) {
    static_cast<void>(
        nn::catch_torch(ErrorCode::kInternal, "waiting for weights on the device", [&] { filled_->synchronize(); }));
  }
  for (const auto& place : buckets_->places()) {
    if (place.parameter.tensor.is_cpu()) place.parameter.tensor.set_data(place.parameter.tensor.detach().clone());
  }
  buckets_.reset();
  reducer_->leave();
}

}  // namespace motley::bind
