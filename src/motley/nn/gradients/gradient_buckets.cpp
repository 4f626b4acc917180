#include "motley/nn/gradients/gradient_buckets.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <ranges>

#include "motley/nn/gradients/device_copy.h"
#include "motley/nn/gradients/pinned_region.h"

namespace motley::nn {

constexpr std::size_t kMostPadding = 4096;  // after a bucket

struct GradientBuckets::State {
  struct Bucket {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> views;   // of `gradients`, one a parameter: its .grad once it has one
    std::vector<at::Tensor> own;     // while .grad is the reduced one: this worker's; empty where that is not kept
    std::vector<bool> is_in_memory;  // whether this worker's is there, where it is kept
    std::size_t elements = 0;
    at::Tensor gradients;  // flat
    at::Tensor memory;     // flat view of the exchange's memory; the same tensor on the CPU
    at::Tensor staged;     // pinned, between both: `memory` itself where that is pinned; undefined on the CPU
    DeviceCopies::Arriving arriving;
    int incomplete = 0;  // parameters without a complete gradient since arm()

    bool is_direct() const { return staged.is_same(memory); }

    // This worker's, where it is kept; undefined where there is none.
    const at::Tensor& own_gradient(std::size_t at) const {
      const at::Tensor& gradient = parameters[at].grad();
      return gradient.is_same(views[at]) ? own[at] : gradient;
    }
    void copy_own(std::size_t at) {
      if (is_in_memory[at]) return;
      const at::Tensor& gradient = own_gradient(at);
      gradient.defined() ? views[at].copy_(gradient) : views[at].zero_();
      is_in_memory[at] = true;
    }
  };

  std::vector<Bucket> buckets;
  std::vector<Place> places;
  at::ScalarType dtype = at::kFloat;
  Options options;
  std::optional<DeviceCopies> copies;  // none on the CPU
  PinnedRegion pinned;                 // the exchange's memory, where a device copies from and to it
  OnReady on_ready;                    // empty: not armed
  int next = 0;                        // the first bucket that was not announced
  Status status;

  // Announces the next bucket, or begins to copy it from the device.
  void announce_next() {
    const int index = next++;
    if (status) status = announce(index, buckets[static_cast<std::size_t>(index)]);
  }

  Status announce(int index, Bucket& bucket) const {
    MOTLEY_TRY(catch_torch(ErrorCode::kInternal, "completing gradients", [&] {
      const at::NoGradGuard no_grad;
      if (!options.keeps_own) return complete(bucket);
      for (std::size_t at = 0; at < bucket.parameters.size(); ++at) bucket.copy_own(at);
    }));
    if (!copies) return on_ready(index);
    MOTLEY_ASSIGN(bucket.arriving, copies->kept_to_host(bucket.gradients, bucket.staged));
    return {};
  }

  // Announces the buckets that are being copied, as they arrive.
  Status announce_copied() {
    for (int index = 0; index < static_cast<int>(buckets.size()); ++index) {
      Bucket& bucket = buckets[static_cast<std::size_t>(index)];
      MOTLEY_TRY(bucket.arriving.wait());
      if (!bucket.is_direct()) bucket.memory.copy_(bucket.staged);
      MOTLEY_TRY(on_ready(index));
    }
    return {};
  }

  // Parameters that have had no gradient since zero() get one of zeros. A gradient elsewhere was put there by others,
  // or a hook of theirs took our hook's place.
  static void complete(Bucket& bucket) {
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      at::Tensor& gradient = bucket.parameters[at].mutable_grad();
      at::Tensor& view = bucket.views[at];
      if (gradient.is_same(view)) continue;
      gradient = gradient.defined() ? view.copy_(gradient) : view.zero_();
    }
  }

  // The first gradient since zero() is a tensor of autograd's own: it goes into the bucket, and later ones are added
  // there. That reads and writes half as much as adding to zeros does. Where it is kept, it goes there when it is
  // complete.
  void accumulated(std::size_t index, std::size_t at) {
    const at::NoGradGuard no_grad;
    Bucket& bucket = buckets[index];
    at::Tensor& gradient = bucket.parameters[at].mutable_grad();
    const at::Tensor& view = bucket.views[at];
    if (options.keeps_own) {
      // Where the gradients of several parameters, or inputs, are the same, autograd gives them views of one tensor,
      // and adds to each in place: nobody but .grad may have this one's memory.
      if (gradient.has_storage() && gradient.storage().use_count() > 1) gradient = gradient.clone();
      bucket.is_in_memory[at] = false;
      if (on_ready) bucket.copy_own(at);
    } else if (!gradient.is_same(view)) {
      gradient = view.copy_(gradient);
    }
    if (!on_ready) return;
    if (bucket.incomplete == 0) {
      status = fail(ErrorCode::kInvalidInput,
                    "parameters got gradients from a second backward pass after the first one's were announced; "
                    "accepted: one announcing backward pass a step, the last");
      return;
    }
    --bucket.incomplete;
    while (next < static_cast<int>(buckets.size()) && buckets[static_cast<std::size_t>(next)].incomplete == 0) {
      announce_next();
    }
  }
};

namespace {

// Called by autograd after it has added to a parameter's .grad.
class AccumulationHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AccumulationHook(std::function<void()> on_added) : on_added_(std::move(on_added)) {}
  void operator()(const at::Tensor&) override { on_added_(); }

 private:
  std::function<void()> on_added_;
};

}  // namespace

GradientBuckets::GradientBuckets(std::shared_ptr<State> state) : state_(std::move(state)) {}

GradientBuckets::~GradientBuckets() {
  for (const Place& place : state_->places) {
    torch::autograd::impl::set_post_acc_grad_hooks(place.parameter.tensor, nullptr);
  }
  zero();
  if (state_->copies && state_->copies->overlap()) {
    // Copies of a step that was given up may be under way.
    const at::Device device = state_->copies->device();
    catch_torch(ErrorCode::kInternal, "waiting for copies",
                [&] { c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index()); });
  }
}

Result<std::unique_ptr<GradientBuckets>> GradientBuckets::create(const NamedTensors& parameters,
                                                                 std::size_t bucket_bytes, const Options& options) {
  auto state = std::make_shared<State>();
  state->options = options;
  const at::Tensor first = parameters.empty() ? at::empty({0}) : parameters.front().tensor;
  state->dtype = first.scalar_type();
  // Whether a bucket of so many values takes so many more.
  const auto takes = [&](std::size_t values, std::size_t more) {
    const bool is_first = state->buckets.size() == 1;
    return (values + more) * first.element_size() <= bucket_bytes &&
           (!is_first || values * first.element_size() < kFirstBucketBytes);
  };

  for (const NamedTensor& parameter : std::views::reverse(parameters)) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.scalar_type() != state->dtype || tensor.device() != first.device() ||
        (state->dtype != at::kFloat && state->dtype != at::kDouble)) {
      return fail(ErrorCode::kInvalidInput,
                  "parameter '{}' is {} on {}; accepted: all parameters float32, or all float64, on one device",
                  parameter.name, c10::toString(tensor.scalar_type()), tensor.device().str());
    }
    const auto elements = static_cast<std::size_t>(tensor.numel());
    if (state->buckets.empty() || !takes(state->buckets.back().elements, elements)) state->buckets.emplace_back();
    state->places.push_back({parameter, static_cast<int>(state->buckets.size()) - 1,
                             static_cast<std::int64_t>(state->buckets.back().elements)});
    state->buckets.back().parameters.push_back(tensor);
    state->buckets.back().elements += elements;
  }
  for (State::Bucket& bucket : state->buckets) {
    bucket.own.resize(bucket.parameters.size());
    bucket.is_in_memory.resize(bucket.parameters.size());
  }
  std::ranges::reverse(state->places);
  return std::unique_ptr<GradientBuckets>(new GradientBuckets(std::move(state)));
}

int GradientBuckets::count() const {
  return static_cast<int>(state_->buckets.size());
}

const std::vector<GradientBuckets::Place>& GradientBuckets::places() const {
  return state_->places;
}

at::ScalarType GradientBuckets::dtype() const {
  return state_->dtype;
}

std::vector<std::size_t> GradientBuckets::bucket_elements() const {
  std::vector<std::size_t> elements;
  for (const State::Bucket& bucket : state_->buckets) elements.push_back(bucket.elements);
  return elements;
}

Status GradientBuckets::bind(const std::vector<std::span<std::byte>>& memory, const std::shared_ptr<void>& owner) {
  MOTLEY_INVARIANT(memory.size() == state_->buckets.size(), "{} buckets were given memory for {}",
                   state_->buckets.size(), memory.size());
  const at::Device device = memory.empty() ? at::kCPU : state_->places.front().parameter.tensor.device();
  if (!device.is_cpu()) {
    MOTLEY_INVARIANT(!state_->options.keeps_own, "gradients of a device were to be kept");
    MOTLEY_ASSIGN(state_->copies, DeviceCopies::create(device, state_->options.overlaps));
  }
  const bool is_pinned = state_->copies && state_->copies->overlap() && pin(device.type(), memory);
  return catch_torch(ErrorCode::kInternal, "binding gradients to the exchange's memory", [&]() -> Status {
    const at::NoGradGuard no_grad;
    for (std::size_t index = 0; index < memory.size(); ++index) {
      State::Bucket& bucket = state_->buckets[index];
      const std::span<std::byte> bytes = memory[index];
      const std::size_t width = at::elementSize(state_->dtype);
      MOTLEY_INVARIANT(bytes.size() == bucket.elements * width, "bucket {} of {} values was given {} bytes", index,
                       bucket.elements, bytes.size());
      MOTLEY_INVARIANT(reinterpret_cast<std::uintptr_t>(bytes.data()) % width == 0, "bucket {} is not aligned", index);

      bucket.memory =
          at::from_blob(bytes.data(), {static_cast<std::int64_t>(bucket.elements)}, [owner](void*) {}, state_->dtype);
      bucket.gradients = bucket.memory;
      if (state_->copies) {
        bucket.gradients = at::empty_like(bucket.memory, bucket.memory.options().device(device));
        bucket.staged = bucket.memory;
        if (!is_pinned) {
          MOTLEY_ASSIGN(bucket.staged, state_->copies->host_memory(bucket.memory.sizes(), state_->dtype));
        }
      }
      bucket.gradients.zero_();

      const bool is_again = !bucket.views.empty();
      MOTLEY_INVARIANT(!is_again || state_->options.keeps_own, "gradients were bound twice");
      std::vector<at::Tensor> views;
      std::int64_t offset = 0;
      for (at::Tensor& parameter : bucket.parameters) {
        views.push_back(bucket.gradients.as_strided(
            parameter.sizes(), at::infer_dense_strides(parameter.sizes(), parameter.strides()), offset));
        offset += parameter.numel();
        if (is_again) continue;
        parameter.mutable_grad() = views.back();
        torch::autograd::impl::set_post_acc_grad_hooks(
            parameter, std::make_unique<AccumulationHook>(
                           [state = state_, index, at = views.size() - 1] { state->accumulated(index, at); }));
      }
      bucket.views = std::move(views);
    }
    return {};
  });
}

// Whether the device copies from and to all of this memory by itself from now on: it is one region, all of it buckets
// but for what aligns them.
bool GradientBuckets::pin(c10::DeviceType type, const std::vector<std::span<std::byte>>& memory) {
  std::byte* begin = memory.front().data();
  std::byte* end = begin;
  std::size_t bytes = 0;
  for (const std::span<std::byte> bucket : memory) {
    begin = std::min(begin, bucket.data());
    end = std::max(end, bucket.data() + bucket.size());
    bytes += bucket.size();
  }
  if (end - begin > static_cast<std::ptrdiff_t>(bytes + memory.size() * kMostPadding)) return false;
  auto pinned = PinnedRegion::pin(type, {begin, end});
  if (pinned) state_->pinned = std::move(*pinned);
  return pinned.has_value();
}

void GradientBuckets::restore() {
  MOTLEY_INVARIANT(state_->options.keeps_own, "gradients that are not kept were to be restored");
  for (State::Bucket& bucket : state_->buckets) {
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      bucket.parameters[at].mutable_grad() = at::Tensor(bucket.own_gradient(at));
      bucket.is_in_memory[at] = false;
    }
  }
}

std::vector<std::vector<std::byte>> GradientBuckets::own() {
  MOTLEY_INVARIANT(state_->options.keeps_own, "gradients that are not kept were to be read");
  const at::NoGradGuard no_grad;
  std::vector<std::vector<std::byte>> own;
  for (const State::Bucket& bucket : state_->buckets) {
    at::Tensor flat = at::zeros_like(bucket.memory);
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      const at::Tensor& view = bucket.views[at];
      const at::Tensor& gradient = bucket.own_gradient(at);
      if (gradient.defined()) flat.as_strided(view.sizes(), view.strides(), view.storage_offset()).copy_(gradient);
    }
    const auto* bytes = static_cast<const std::byte*>(flat.data_ptr());
    own.emplace_back(bytes, bytes + flat.nbytes());
  }
  return own;
}

void GradientBuckets::set_own(const std::vector<std::vector<std::byte>>& gradients, double factor) {
  MOTLEY_INVARIANT(state_->options.keeps_own && gradients.size() == state_->buckets.size(),
                   "{} buckets were given gradients of {}", state_->buckets.size(), gradients.size());
  const at::NoGradGuard no_grad;
  for (std::size_t index = 0; index < gradients.size(); ++index) {
    State::Bucket& bucket = state_->buckets[index];
    MOTLEY_INVARIANT(gradients[index].size() == bucket.memory.nbytes(), "bucket {} was given {} bytes", index,
                     gradients[index].size());
    at::Tensor flat = at::empty_like(bucket.memory);
    std::ranges::copy(gradients[index], static_cast<std::byte*>(flat.data_ptr()));
    flat.mul_(factor);
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      const at::Tensor& view = bucket.views[at];
      bucket.parameters[at].mutable_grad() = flat.as_strided(view.sizes(), view.strides(), view.storage_offset());
      bucket.is_in_memory[at] = false;
    }
  }
}

void GradientBuckets::zero() {
  for (State::Bucket& bucket : state_->buckets) {
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      bucket.parameters[at].mutable_grad() = bucket.own[at] = at::Tensor();
      bucket.is_in_memory[at] = false;
    }
  }
}

void GradientBuckets::scale(double factor) {
  MOTLEY_INVARIANT(state_->next == 0 || !state_->on_ready, "gradients were scaled after a bucket was announced");
  const at::NoGradGuard no_grad;
  for (State::Bucket& bucket : state_->buckets) {
    if (!state_->options.keeps_own) {
      State::complete(bucket);
      bucket.gradients.mul_(factor);
      continue;
    }
    for (std::size_t at = 0; at < bucket.parameters.size(); ++at) {
      if (at::Tensor own = bucket.own_gradient(at); own.defined()) own.mul_(factor);
      bucket.is_in_memory[at] = false;
    }
  }
}

void GradientBuckets::arm(OnReady on_ready) {
  state_->on_ready = std::move(on_ready);
  state_->next = 0;
  state_->status = {};
  for (State::Bucket& bucket : state_->buckets) {
    bucket.incomplete = static_cast<int>(bucket.parameters.size());
  }
}

bool GradientBuckets::disarm() {
  if (state_->on_ready && (state_->next > 0 || !state_->status)) return false;
  state_->on_ready = nullptr;
  return true;
}

Status GradientBuckets::flush() {
  MOTLEY_INVARIANT(static_cast<bool>(state_->on_ready), "flush() without arm()");
  while (state_->next < count()) state_->announce_next();
  if (state_->copies && state_->status) state_->status = state_->announce_copied();
  state_->on_ready = nullptr;
  return state_->status;
}

Status GradientBuckets::fetch(int bucket) {
  State::Bucket& fetched = state_->buckets[static_cast<std::size_t>(bucket)];
  for (std::size_t at = 0; state_->options.keeps_own && at < fetched.parameters.size(); ++at) {
    at::Tensor& gradient = fetched.parameters[at].mutable_grad();
    if (!gradient.is_same(fetched.views[at])) fetched.own[at] = std::exchange(gradient, fetched.views[at]);
  }
  if (!state_->copies) return {};
  // The device has read `staged` for the step before: this step's gradients have come through it since.
  return catch_torch(ErrorCode::kInternal, "copying gradients to the device", [&] {
    if (!fetched.is_direct()) fetched.staged.copy_(fetched.memory);
    fetched.gradients.copy_(fetched.staged, /*non_blocking=*/true);
  });
}

}  // namespace motley::nn
