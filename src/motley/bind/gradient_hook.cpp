#include "motley/bind/gradient_hook.h"

#include <ATen/ATen.h>

#include <utility>

#include "motley/base/clock.h"

namespace motley::bind {
namespace {

void scale(at::Tensor& tensor, double weight) {
  if (weight == 0) {
    tensor.zero_();  // 0 times what is not a number would not be 0
  } else {
    tensor.mul_(weight);
  }
}

at::Tensor flatten(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> detached;
  for (const at::Tensor& tensor : tensors) detached.push_back(tensor.detach());
  return at::cat(detached).to(at::kDouble);
}

void set_statistics(const std::vector<at::Tensor>& layers, const at::Tensor& values) {
  std::int64_t begin = 0;
  for (const at::Tensor& layer : layers) {
    layer.detach().copy_(values.narrow(0, begin, layer.numel()));
    begin += layer.numel();
  }
}

}  // namespace

void GradientWeight::begin(const at::Device& device) {
  finished = reduced = 0;
  statistics.reset();
  finished_on_device.reset();
  began_on_device.reset();
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  began_on_device.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  began_on_device->record(guard.getStream(device));
}

void GradientWeight::note_finished(const at::Device& device) {
  finished = monotonic_seconds();
  if (!began_on_device || device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  finished_on_device.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  finished_on_device->record(guard.getStream(device));
}

double GradientWeight::device_seconds() const {
  if (!began_on_device || !finished_on_device) return -1;
  finished_on_device->synchronize();
  return began_on_device->elapsedTime(*finished_on_device) / 1e3;
}

c10::intrusive_ptr<c10::ivalue::Future> GradientHook::runHook(c10d::GradBucket& bucket) {
  at::Tensor& gradients = bucket.getBufferRef();
  if (bucket.isLast()) weight_->note_finished(gradients.device());
  if (bucket.getIndex() == 0) {  // DistributedDataParallel gives the buckets in this order on all ranks
    averaged_ = weight_->statistics ? average_statistics() : nullptr;
  }
  scale(gradients, weight_->weight);
  const auto summed = sum(gradients);
  const bool is_timed = gradients.is_cpu();  // elsewhere a future is complete before the device is
  if (!bucket.isLast() || !(averaged_ || is_timed)) return summed;
  auto last = summed;
  std::vector<at::Tensor> layers;
  if (averaged_) {
    layers = weight_->statistics->layers;
    last = summed->thenAsync([averaged = std::exchange(averaged_, nullptr)](c10::ivalue::Future&) { return averaged; },
                             c10::AnyType::get());
  }
  return last->then(
      [summed, is_timed, layers = std::move(layers), weight = weight_](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        if (!layers.empty()) set_statistics(layers, done.value().toTensor());
        if (is_timed) weight->reduced = monotonic_seconds();
        return summed->value();
      },
      c10::AnyType::get());
}

at::Tensor GradientHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

c10::intrusive_ptr<c10::ivalue::Future> GradientHook::sum(at::Tensor tensor) {
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  return group_->allreduce(tensors)->getFuture();
}

// The running values that all ranks are to have, in one piece: their sum is under way beside backward.
c10::intrusive_ptr<c10::ivalue::Future> GradientHook::average_statistics() {
  const RunningStatistics& statistics = *weight_->statistics;
  const at::Tensor seen = (flatten(statistics.layers) - statistics.kept * statistics.before) / (1 - statistics.kept);
  const auto halves = seen.chunk(2);
  at::Tensor whole = at::cat({halves[0], halves[1] + halves[0].square()});
  scale(whole, weight_->share);
  return sum(whole)->then(
      [whole, before = statistics.before, kept = statistics.kept_once](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(done.exception_ptr());
        const auto sums = whole.chunk(2);
        // Rounding may leave the variance of a constant channel a little below zero.
        const at::Tensor all = at::cat({sums[0], (sums[1] - sums[0].square()).clamp_min(0)});
        return c10::IValue(kept * before + (1 - kept) * all);
      },
      c10::TensorType::get());
}

}  // namespace motley::bind
