// Any operation goes the same way (run_on_stream): its tensors of the device become tensors of the CPU over the same
// bytes, and the CPU's kernel runs when the stream's turn comes. For that the host has to know the results' shapes
// before they are computed. They follow from the arguments' shapes and numbers for all but a few operations; so the
// first call of each kind waits for its results to see their shapes, and later ones do not.
#include "motley/nn/emulated/kernels.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <mutex>
#include <set>
#include <unordered_map>

#include "motley/nn/emulated/emulated_accelerator.h"
#include "motley/nn/emulated/omissions.h"

namespace motley::nn::emulated {
namespace {

using torch::jit::Stack;

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice;
}

// The bytes from a tensor's first value to its last.
Bytes find_bytes(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {};
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size()), writes};
}

// What kernels compute with in its place: the same values, for tensors of the device and pinned ones.
at::Tensor kernel_view(const at::Tensor& tensor) {
  void* const memory = tensor.numel() == 0 ? nullptr : runtime().kernel_address(tensor.const_data_ptr());
  return at::from_blob(memory, tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

at::Tensor empty(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type) {
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDevice),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

// What an operation returns in one place.
struct Shape {
  bool is_defined = false;
  std::vector<std::int64_t> sizes = {};
  std::vector<std::int64_t> strides = {};
  at::ScalarType type = at::kFloat;

  static Shape read(const at::Tensor& tensor) {
    if (!tensor.defined()) return {};
    return {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
  }
  at::Tensor make() const { return is_defined ? empty(sizes, strides, type) : at::Tensor(); }
  bool operator==(const Shape&) const = default;
};

// Of each return its tensors; nullopt where it is no tensor.
using Shapes = std::vector<std::optional<std::vector<Shape>>>;

// The results' shapes by operation and arguments.
class KnownShapes {
 public:
  std::optional<Shapes> find(const std::string& call) {
    const std::lock_guard lock(mutex_);
    const auto found = shapes_.find(call);
    return found == shapes_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(const std::string& call, Shapes shapes) {
    const std::lock_guard lock(mutex_);
    shapes_.insert_or_assign(call, std::move(shapes));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, Shapes> shapes_;
};

KnownShapes& known_shapes() {
  static auto* const known = new KnownShapes();
  return *known;
}

// Whose results have as many values as the arguments' values say.
bool depends_on_values(const std::string& name) {
  static const std::set<std::string> names = {"aten::nonzero",
                                              "aten::masked_select",
                                              "aten::_unique",
                                              "aten::_unique2",
                                              "aten::unique_dim",
                                              "aten::unique_consecutive",
                                              "aten::unique_dim_consecutive",
                                              "aten::repeat_interleave",
                                              "aten::bincount",
                                              "aten::histc",
                                              "aten::index"};
  return names.contains(name);
}

// Whose tensors of the host are read beside those of the device, as CUDA's are.
bool takes_host_indices(const std::string& name) {
  static const std::set<std::string> names = {"aten::index", "aten::index_put", "aten::index_put_",
                                              "aten::_index_put_impl_"};
  return names.contains(name);
}

// One call of an operation, whose arguments are made those of the CPU's kernel.
class Call {
 public:
  Call(const c10::OperatorHandle& operation, Stack* stack)
      : operation_(operation), schema_(operation.schema()), name_(schema_.name()), stack_(stack) {
    const std::size_t count = schema_.arguments().size();
    given_.assign(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    torch::jit::drop(*stack, count);
    key_ = name_ + '.' + schema_.overload_name();
    find_device();
    for (std::size_t i = 0; i < count; ++i) arguments_.push_back(convert(i));
    add_times();
  }

  void run() {
    const c10::DeviceGuard guard(c10::Device(kDevice, device_));
    stream_ = current_stream(device_);
    const auto known = returns_only_tensors() && resized_.empty() && !depends_on_values(name_)
                           ? known_shapes().find(key_)
                           : std::nullopt;
    known ? run_ahead(*known) : run_and_see();
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  void find_device() {
    std::optional<c10::DeviceIndex> found;
    const auto look = [&](const at::Tensor& tensor) {
      if (!is_ours(tensor)) return;
      TORCH_CHECK(!found || *found == tensor.device().index(), name_,
                  ": tensors of emulated:", static_cast<int>(*found),
                  " and of emulated:", static_cast<int>(tensor.device().index()));
      found = tensor.device().index();
    };
    for (const c10::IValue& value : given_) {
      if (value.isTensor()) look(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) look(tensor);
      }
      if (value.isDevice() && value.toDevice().type() == kDevice && value.toDevice().has_index() && !found) {
        found = value.toDevice().index();
      }
    }
    device_ = found ? *found : c10::impl::getDeviceGuardImpl(kDevice)->getDevice().index();
  }

  template <class Number>
  void add_to_key(const Number& number) {
    key_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  void add_to_key(c10::IntArrayRef numbers) {
    add_to_key(numbers.size());
    key_.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::int64_t));
  }

  // The kernel's tensor for one of the arguments.
  at::Tensor convert(const at::Tensor& tensor, bool writes) {
    if (!tensor.defined()) {
      key_ += 'u';
      return tensor;
    }
    key_ += is_ours(tensor) ? 'd' : 'h';
    add_to_key(tensor.scalar_type());
    add_to_key(tensor.sizes());
    add_to_key(tensor.strides());
    if (!is_ours(tensor)) {
      TORCH_CHECK(tensor.device().is_cpu() && !writes && (tensor.dim() == 0 || takes_host_indices(name_)), name_,
                  ": a tensor is on ", tensor.device(), " and another on emulated:", static_cast<int>(device_),
                  "; accepted: all on one device");
      at::Tensor copy = tensor.detach().clone();  // the host may change its own
      copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
      return copy;
    }
    if (writes && tensor.numel() == 0) {
      at::Tensor filled = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
      resized_.emplace_back(tensor, filled);
      return filled;
    }
    bytes_.push_back(find_bytes(tensor, writes));
    seconds_ += moving_seconds(tensor);
    return kernel_view(tensor);
  }

  c10::IValue convert(std::size_t index) {
    const c10::Argument& argument = schema_.arguments()[index];
    const c10::IValue& value = given_[index];
    // Statistics that it moves, which its schema does not say.
    const bool moves = name_ == "aten::native_batch_norm" && argument.name().starts_with("running_");
    const bool writes = moves || (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    if (value.isTensor()) return convert(value.toTensor(), writes);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(convert(tensor, writes));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(convert(*tensor, writes)) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return c10::Device(at::kCPU);
    if (value.isGenerator()) return cpu_generator(value.toGenerator());
    if (value.isNone()) {
      key_ += 'n';
      const c10::TypePtr type = argument.type();
      const auto* const optional = type->castRaw<c10::OptionalType>();
      if (optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType) {
        return cpu_generator(at::globalContext().defaultGenerator(c10::Device(kDevice, device_)));
      }
      return value;
    }
    if (value.isInt() || value.isBool() || value.isIntList()) {
      const std::vector<std::int64_t> numbers = value.isIntList() ? value.toIntVector()
                                                : value.isInt()   ? std::vector{value.toInt()}
                                                                  : std::vector<std::int64_t>{value.toBool()};
      add_to_key(c10::IntArrayRef(numbers));
    } else if (value.isBoolList()) {
      for (const bool flag : value.toBoolList()) key_ += flag ? '1' : '0';
    } else if (value.isString()) {
      key_ += value.toStringRef();
    } else {
      key_ += value.tagKind();  // of other numbers no shape depends on the value
    }
    return value;
  }

  // As long as its profile says that it takes: the bytes that it moves (of each argument and result), and products of
  // matrices and convolutions what they multiply.
  void add_times() {
    const Options& options = runtime().options();
    seconds_ += options.kernel_seconds;
    if (options.flops_per_second > 0) seconds_ += estimate_flops() / options.flops_per_second;
  }

  static double moving_seconds(const at::Tensor& tensor) {
    const double rate = runtime().options().memory_bytes_per_second;
    return rate > 0 ? static_cast<double>(tensor.nbytes()) / rate : 0;
  }

  double estimate_flops() const {
    const auto values = [&](std::size_t index) {
      return index < given_.size() && given_[index].isTensor() && given_[index].toTensor().defined()
                 ? static_cast<double>(given_[index].toTensor().numel())
                 : 0.0;
    };
    const auto last_size = [&](std::size_t index) {
      return static_cast<double>(std::max<std::int64_t>(1, given_[index].toTensor().size(-1)));
    };
    if (name_ == "aten::mm" || name_ == "aten::bmm") return 2 * values(0) * last_size(1);
    if (name_ == "aten::addmm" || name_ == "aten::baddbmm") return 2 * values(1) * last_size(2);
    if (name_ == "aten::convolution") return 2 * (is_set(6) ? values(0) : count_convolved()) * channel_weights(1);
    if (name_ == "aten::convolution_backward") {  // the gradients of the input and of the weight, as far as wanted
      const c10::List<bool> wanted = given_[10].toBoolList();
      return 2.0 * (wanted[0] + wanted[1]) * (is_set(7) ? values(1) : values(0)) * channel_weights(2);
    }
    return 0;
  }

  bool is_set(std::size_t index) const { return given_[index].toBool(); }

  // What each value of a convolution's result is multiplied with or, of a transposed one, each of its input: the
  // weights of one of the channels that the weight's first axis has.
  double channel_weights(std::size_t index) const {
    const at::Tensor& weight = given_[index].toTensor();
    return static_cast<double>(weight.numel()) / static_cast<double>(std::max<std::int64_t>(1, weight.size(0)));
  }

  // Values of the result of a convolution that is not transposed.
  double count_convolved() const {
    const at::Tensor &input = given_[0].toTensor(), &weight = given_[1].toTensor();
    const auto strides = given_[3].toIntVector(), padding = given_[4].toIntVector(), dilation = given_[5].toIntVector();
    double values = static_cast<double>(input.size(0) * weight.size(0));
    for (std::size_t axis = 0; axis < strides.size(); ++axis) {
      const auto at = static_cast<std::int64_t>(axis) + 2;
      const std::int64_t covered = dilation[axis] * (weight.size(at) - 1) + 1;
      values *= static_cast<double>((input.size(at) + 2 * padding[axis] - covered) / strides[axis] + 1);
    }
    return values;
  }

  bool returns_only_tensors() const {
    for (const c10::Argument& result : schema_.returns()) {
      const c10::TypeKind kind = result.type()->kind();
      if (kind == c10::TypeKind::TensorType) continue;
      if (kind == c10::TypeKind::ListType &&
          result.type()->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType) {
        continue;
      }
      return false;
    }
    return true;
  }

  static void compute(const c10::OperatorHandle& operation, Stack& stack) {
    const at::AutoDispatchBelowADInplaceOrView below;
    operation.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  }

  // The tensors of one of the kernel's results.
  static Tensors list_tensors(const c10::IValue& result) {
    if (result.isTensor()) return {result.toTensor()};
    return result.isTensorList() ? result.toTensorVector() : Tensors();
  }

  const char* operation_name() const { return schema_.name().c_str(); }

  void run_ahead(const Shapes& shapes) {
    Stack results;
    std::vector<std::pair<std::size_t, Tensors>> targets;  // views of the results' memory, by the return's number
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      if (c10::IValue given; find_given(i, given)) {
        results.push_back(std::move(given));
        continue;
      }
      Tensors made, views;
      for (const Shape& shape : *shapes[i]) {
        made.push_back(shape.make());
        if (!shape.is_defined) {
          views.emplace_back();
          continue;
        }
        views.push_back(kernel_view(made.back()));
        bytes_.push_back(find_bytes(made.back(), true));
        seconds_ += moving_seconds(made.back());
      }
      results.push_back(as_return(i, made));
      targets.emplace_back(i, std::move(views));
    }
    runtime().issue(
        stream_, Engine::kCompute, seconds_, bytes_,
        [operation = operation_, stack = std::move(arguments_), targets = std::move(targets)]() mutable {
          compute(operation, stack);
          for (const auto& [index, views] : targets) {
            const Tensors computed = list_tensors(stack[index]);
            for (std::size_t i = 0; i < views.size(); ++i) fill(views[i], computed[i]);
          }
        },
        operation_name());
    for (c10::IValue& result : results) stack_->push_back(std::move(result));
  }

  static void fill(const at::Tensor& view, const at::Tensor& computed) {
    TORCH_CHECK(view.defined() == computed.defined(), "a result is there in one call and not in another");
    if (!view.defined()) return;
    TORCH_CHECK(Shape::read(view) == Shape::read(computed), "the result has ", computed.sizes(), " values, and had ",
                view.sizes(), " for the same arguments before");
    const at::AutoDispatchBelowADInplaceOrView below;
    view.copy_(computed);
  }

  void run_and_see() {
    Stack computed = std::move(arguments_);
    const Event event = runtime().issue_and_see(
        stream_, Engine::kCompute, seconds_, bytes_, [&] { compute(operation_, computed); }, operation_name());
    if (!returns_only_tensors()) runtime().synchronize(event);  // the host has its value
    for (const auto& [tensor, filled] : resized_) {
      tensor.resize_(filled.sizes());
      put(filled, tensor);
    }
    Shapes shapes;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      std::vector<Shape> seen;
      c10::IValue given;
      if (find_given(i, given)) {
        stack_->push_back(std::move(given));
      } else if (!computed[i].isTensor() && !computed[i].isTensorList()) {
        stack_->push_back(computed[i]);
      } else {
        Tensors made;
        for (const at::Tensor& tensor : list_tensors(computed[i])) {
          seen.push_back(Shape::read(tensor));
          made.push_back(seen.back().make());
          if (tensor.defined()) put(tensor, made.back());
        }
        stack_->push_back(as_return(i, made));
      }
      shapes.emplace_back(std::move(seen));
    }
    if (resized_.empty()) known_shapes().add(key_, std::move(shapes));
  }

  void put(const at::Tensor& values, const at::Tensor& into) const {
    runtime().issue(
        stream_, Engine::kCompute, moving_seconds(into), {find_bytes(into, true)},
        [values, view = kernel_view(into)] {
          const at::AutoDispatchBelowADInplaceOrView below;
          view.copy_(values);
        },
        operation_name());
  }

  c10::IValue as_return(std::size_t index, const Tensors& tensors) const {
    if (schema_.returns()[index].type()->kind() != c10::TypeKind::ListType) return tensors.front();
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : tensors) list.push_back(tensor);
    return list;
  }

  // The argument that a return is, where it is one.
  bool find_given(std::size_t index, c10::IValue& given) const {
    const c10::AliasInfo* const alias = schema_.returns()[index].alias_info();
    if (alias == nullptr) return false;
    TORCH_CHECK(alias->isWrite(), name_, " makes a view, which the emulated accelerator does not know");
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const c10::AliasInfo* const own = schema_.arguments()[i].alias_info();
      if (own == nullptr || own->beforeSets() != alias->beforeSets()) continue;
      given = given_[i];
      return true;
    }
    return false;
  }

  const c10::OperatorHandle operation_;
  const c10::FunctionSchema& schema_;
  const std::string& name_;
  Stack* const stack_;
  std::vector<c10::IValue> given_;
  Stack arguments_;  // of the CPU's kernel
  std::string key_;
  std::vector<Bytes> bytes_;
  double seconds_ = 0;
  c10::DeviceIndex device_ = 0;
  int stream_ = 0;
  std::vector<std::pair<at::Tensor, at::Tensor>> resized_;  // arguments that get their size from the kernel
};

void run_on_stream(const c10::OperatorHandle& operation, Stack* stack) {
  Call(operation, stack).run();
}

at::Tensor empty_memory_format(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                               std::optional<c10::Device> device, std::optional<bool>,
                               std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, c10::GetAllocator(kDevice), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return empty(size, stride, c10::dtype_or_default(type));
}

double copy_seconds(const at::Tensor& values) {
  const Options& options = runtime().options();
  return options.link_seconds +
         (options.link_bytes_per_second > 0 ? static_cast<double>(values.nbytes()) / options.link_bytes_per_second : 0);
}

std::function<void()> copying(const at::Tensor& from, const at::Tensor& to) {
  return [from = kernel_view(from), to = kernel_view(to)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    to.copy_(from);
  };
}

// Between the host and a device. From and to memory that is not pinned the host waits, as CUDA's driver has it.
void copy_over_link(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool to_device = is_ours(to);
  const at::Tensor& host = to_device ? from : to;
  const c10::Device device = to_device ? to.device() : from.device();
  const c10::DeviceGuard guard(device);
  const int stream = current_stream(device.index());
  const Engine engine = to_device ? Engine::kToDevice : Engine::kToHost;
  const double seconds = copy_seconds(to);
  const std::vector<Bytes> bytes = {find_bytes(from, false), find_bytes(to, true)};
  if (runtime().is_pinned(host.const_data_ptr())) {
    const Event event = runtime().issue(stream, engine, seconds, bytes, copying(from, to), "aten::copy_");
    if (!non_blocking) runtime().synchronize(event);
    return;
  }
  if (non_blocking && runtime().options().refuses_pageable) {
    runtime().refuse("a copy between the host and " + device.str() +
                     " was asked not to block, and has to: the host's memory is not pinned");
  }
  const std::function<void()> copy = copying(from, to);
  const Event event = runtime().issue_and_see(stream, engine, seconds, bytes, copy, "aten::copy_");
  if (!to_device || !non_blocking) runtime().synchronize(event);
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  const at::Tensor from = source.expand(self.sizes());
  if (from.numel() == 0) return self;
  if (is_ours(self) && is_ours(from)) {
    if (self.device() != from.device()) return self.copy_(from.to(at::kCPU));  // through the host
    const c10::DeviceGuard guard(self.device());
    const double rate = runtime().options().memory_bytes_per_second;
    const double moved = static_cast<double>(self.nbytes() + source.nbytes());
    runtime().issue(current_stream(self.device().index()), Engine::kCompute,
                    runtime().options().kernel_seconds + (rate > 0 ? moved / rate : 0),
                    {find_bytes(source, false), find_bytes(self, true)}, copying(from, self), "aten::copy_");
    return self;
  }
  copy_over_link(from, self, non_blocking);
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  return copy(to, self, non_blocking);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  if (omits(Order::kRecordStream, __builtin_return_address(0))) return;
  runtime().record(static_cast<const std::byte*>(self.storage().data_ptr().get()),
                   stream.device_index() * kStreams + static_cast<int>(stream.id()));
}

// A parameter may move from the host to the device in place, as to CUDA.
bool may_take_data(const at::Tensor&, const at::Tensor&) {
  return true;
}

// As it is on CUDA, and so with the mask of the device's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability,
                                                  std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double kept = 1 - probability;
  const at::Tensor mask = at::empty_like(input, at::kBool).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

// Convolutions choose among libraries by device, and leave those of plug-ins to these two.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, std::int64_t groups) {
  static const c10::OperatorHandle operation = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  Stack stack;
  torch::jit::push(stack, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
  run_on_stream(operation, &stack);
  return stack.back().toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, c10::IntArrayRef stride,
                                                                    c10::IntArrayRef padding, c10::IntArrayRef dilation,
                                                                    bool transposed, c10::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  static const c10::OperatorHandle operation =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const std::int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  Stack stack;
  torch::jit::push(stack, gradient, input, weight, std::vector<std::int64_t>{channels}, stride, padding, dilation,
                   transposed, output_padding, groups, wanted);
  run_on_stream(operation, &stack);
  return {stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor()};
}

}  // namespace

void register_kernels() {
  using torch::Library;
  const auto* const file = __FILE__;
  static auto* const all = new Library(Library::IMPL, "_", c10::DispatchKey::PrivateUse1, file, __LINE__);
  all->fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_stream>());
  static auto* const own = new Library(Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, file, __LINE__);
  own->impl("empty.memory_format", empty_memory_format);
  own->impl("empty_strided", empty_strided);
  own->impl("as_strided", at::native::as_strided_tensorimpl);
  own->impl("view", static_cast<at::Tensor (*)(const at::Tensor&, c10::IntArrayRef)>(at::native::view));
  own->impl("_reshape_alias", at::native::_reshape_alias);
  own->impl("unfold", at::native::unfold);
  own->impl("resize_", at::native::resize_);
  own->impl("set_.source_Tensor", at::native::set_tensor_);
  own->impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_));
  own->impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  own->impl("copy_", copy);
  own->impl("_copy_from", copy_from);
  own->impl("_copy_from_and_resize", copy_from_and_resize);
  own->impl("record_stream", record_stream);
  own->impl("_has_compatible_shallow_copy_type", may_take_data);
  own->impl("native_dropout", native_dropout);
  own->impl("convolution_overrideable", convolution);
  own->impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace motley::nn::emulated
