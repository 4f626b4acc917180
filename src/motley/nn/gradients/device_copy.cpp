// Written against libtorch's streams and events of any device, so that it builds without CUDA's headers.
#include "motley/nn/gradients/device_copy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "motley/nn/gradients/named_tensors.h"

namespace motley::nn {

using c10::impl::VirtualGuardImpl;

Result<DeviceCopies> DeviceCopies::create(at::Device device, bool overlaps) {
  DeviceCopies copies(device, overlaps && !device.is_cpu());
  if (copies.overlaps_) {
    MOTLEY_TRY(catch_torch(ErrorCode::kInternal, "making streams for copies on " + device.str(), [&] {
      const VirtualGuardImpl guard(device.type());
      copies.in_ = std::make_shared<c10::Stream>(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
      copies.out_ = std::make_shared<c10::Stream>(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
    }));
  }
  return copies;
}

Result<at::Tensor> DeviceCopies::host_memory(c10::IntArrayRef shape, at::ScalarType dtype) const {
  return catch_torch(ErrorCode::kInternal, "taking memory for copies",
                     [&] { return at::empty(shape, at::dtype(dtype).pinned_memory(overlaps_)); });
}

Result<at::Tensor> DeviceCopies::to_device(const at::Tensor& values) const {
  MOTLEY_ASSIGN(const at::Tensor sent, send(values));
  MOTLEY_TRY(await_sent({sent}));
  return sent;
}

Result<at::Tensor> DeviceCopies::send(const at::Tensor& values) const {
  if (device_.is_cpu()) return values;
  return catch_torch(ErrorCode::kInternal, "copying to " + device_.str(), [&] {
    const at::NoGradGuard no_grad;
    if (!overlaps_) return values.to(device_);
    // Memory of the copying stream, which so need not wait for what is computed.
    const c10::StreamGuard use(*in_);
    return values.to(values.options().device(device_), /*non_blocking=*/true);
  });
}

// One event follows all that was sent so far.
Status DeviceCopies::await_sent(const std::vector<at::Tensor>& sent) const {
  if (!overlaps_) return {};
  return catch_torch(ErrorCode::kInternal, "waiting for copies to " + device_.str(), [&] {
    const c10::Stream computing = VirtualGuardImpl(device_.type()).getStream(device_);
    c10::Event done(device_.type());
    done.record(*in_);
    done.block(computing);
    for (const at::Tensor& values : sent) values.record_stream(computing);
  });
}

Result<DeviceCopies::Arriving> DeviceCopies::to_host(const at::Tensor& values, std::optional<at::Tensor> into) const {
  if (device_.is_cpu() && !into) return Arriving{values, nullptr};
  if (!into) {
    MOTLEY_ASSIGN(into, host_memory(values.sizes(), values.scalar_type()));
  }
  return copy_to_host(values, *into, /*is_kept=*/false);
}

Result<DeviceCopies::Arriving> DeviceCopies::kept_to_host(const at::Tensor& values, const at::Tensor& into) const {
  return copy_to_host(values, into, /*is_kept=*/true);
}

Result<DeviceCopies::Arriving> DeviceCopies::copy_to_host(const at::Tensor& values, const at::Tensor& into,
                                                          bool is_kept) const {
  return catch_torch(ErrorCode::kInternal, "copying from " + device_.str(), [&] {
    const at::NoGradGuard no_grad;
    Arriving arriving{into, nullptr};
    if (!overlaps_) {
      arriving.values.copy_(values);
      return arriving;
    }
    const c10::Stream computing = VirtualGuardImpl(device_.type()).getStream(device_);
    c10::Event computed(device_.type());
    computed.record(computing);
    computed.block(*out_);
    {
      const c10::StreamGuard use(*out_);
      arriving.values.copy_(values, /*non_blocking=*/true);
    }
    if (!is_kept) values.record_stream(*out_);  // its memory is not given out again before
    arriving.done = std::make_shared<c10::Event>(device_.type());
    arriving.done->record(*out_);
    return arriving;
  });
}

Status DeviceCopies::Arriving::wait() {
  if (is_here()) return {};
  return catch_torch(ErrorCode::kInternal, "waiting for a copy from the device", [&] {
    done->synchronize();
    done.reset();
  });
}

Result<bool> DeviceCopies::Arriving::has_come() {
  if (is_here()) return true;
  return catch_torch(ErrorCode::kInternal, "looking for a copy from the device", [&] { return done->query(); });
}

Status DeviceCopies::fill(const std::vector<Fill>& fills, const std::function<void()>& then,
                          const c10::Event* after) const {
  return catch_torch(ErrorCode::kInternal, "copying to " + device_.str(), [&] {
    const at::NoGradGuard no_grad;
    if (after != nullptr) after->block(*in_);
    const c10::StreamGuard use(*in_);
    for (const auto& [from, into] : fills) {
      into.copy_(from.view_as(into), /*non_blocking=*/true);
      into.record_stream(*in_);  // its memory is not given out again before
    }
    then();
  });
}

Result<std::shared_ptr<c10::Event>> DeviceCopies::record(const c10::Stream& stream) const {
  return catch_torch(ErrorCode::kInternal, "following copies of " + device_.str(), [&] {
    auto event = std::make_shared<c10::Event>(device_.type());
    event->record(stream);
    return event;
  });
}

Result<std::shared_ptr<c10::Event>> DeviceCopies::filled() const {
  return record(*in_);
}

Result<std::shared_ptr<c10::Event>> DeviceCopies::arrived() const {
  return record(*out_);
}

}  // namespace motley::nn
