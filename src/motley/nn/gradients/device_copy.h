// Copies between a device and this machine's memory that run beside what the device computes: from and to pinned
// memory, on streams of their own, one for each direction, ordered with the computation by events. On the CPU there is
// nothing to copy: tensors are passed on as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "motley/base/result.h"

namespace c10 {
struct Event;
class Stream;
}  // namespace c10

namespace motley::nn {

// One thread at a time; "what is computed" is what that thread has queued on its current stream. Errors: kUnavailable
// where memory does not suffice, kInternal for what else libtorch throws.
class DeviceCopies {
 public:
  // Without `overlaps`, copies go through pageable memory, and the caller waits for each.
  static Result<DeviceCopies> create(at::Device device, bool overlaps = true);

  at::Device device() const { return device_; }
  bool overlap() const { return overlaps_; }

  // Memory of this machine for what is copied; not initialised, contiguous. Pinned where copies overlap; libtorch keeps
  // what is let go, and gives it out again once no copy needs it.
  Result<at::Tensor> host_memory(c10::IntArrayRef shape, at::ScalarType dtype) const;

  // These values (of host_memory, not written again) on the device: whatever is computed from now on sees them. On the
  // CPU the tensor itself.
  Result<at::Tensor> to_device(const at::Tensor& values) const;

  // to_device() in two steps: what is queued between them does not wait for the copies. The values of send() are of the
  // device, and not computed with before await_sent() of them.
  Result<at::Tensor> send(const at::Tensor& values) const;
  Status await_sent(const std::vector<at::Tensor>& sent) const;

  // Values on their way from the device.
  struct Arriving {
    at::Tensor values;                 // in this machine's memory; complete after wait()
    std::shared_ptr<c10::Event> done;  // nullptr: they are there

    bool is_here() const { return done == nullptr; }
    Status wait();            // blocks until the device has computed and sent them
    Result<bool> has_come();  // whether wait() would not
  };

  // What these contiguous values of the device will be once all that is queued has been computed, copied into `into`
  // (host_memory of the same size), or into new memory without it. On the CPU, without `into`, the tensor itself.
  Result<Arriving> to_host(const at::Tensor& values, std::optional<at::Tensor> into = std::nullopt) const;
  // The same of values that the caller keeps until they have arrived.
  Result<Arriving> kept_to_host(const at::Tensor& values, const at::Tensor& into) const;

  // Values of this machine's memory, and as many of the device to write them into.
  struct Fill {
    at::Tensor from;
    at::Tensor into;
  };
  // Copies all of them, at once and not after what is computed, but for what comes before `after` where that is given,
  // on a stream that is the current one while `then` is called: what this records or queues there comes after the
  // copies. Where copies overlap only.
  Status fill(const std::vector<Fill>& fills, const std::function<void()>& then,
              const c10::Event* after = nullptr) const;
  // What has been read once all that fill() was given so far is copied.
  Result<std::shared_ptr<c10::Event>> filled() const;
  // What has been written once all values that to_host() was given so far have arrived.
  Result<std::shared_ptr<c10::Event>> arrived() const;

 private:
  DeviceCopies(at::Device device, bool overlaps) : device_(device), overlaps_(overlaps) {}
  Result<std::shared_ptr<c10::Event>> record(const c10::Stream& stream) const;
  Result<Arriving> copy_to_host(const at::Tensor& values, const at::Tensor& into, bool is_kept) const;

  at::Device device_;
  bool overlaps_;                    // never on the CPU
  std::shared_ptr<c10::Stream> in_;  // to the device; nullptr where copies do not overlap
  std::shared_ptr<c10::Stream> out_;
};

}  // namespace motley::nn
