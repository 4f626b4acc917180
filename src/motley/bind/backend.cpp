#include "motley/bind/backend.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <Python.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace motley::bind {
namespace {

using collective::Collective;
using collective::CollectiveKind;
using collective::ElementType;
using collective::Reduction;

// Those that are not shut down.
struct Backends {
  std::mutex mutex;
  std::set<Backend*> all;
};
Backends& backends() {
  static Backends* const backends = new Backends;  // never destroyed: a process group may outlive it
  return *backends;
}

// While this lives the thread does not hold Python's lock, which works need that are waited for.
class ReleasedLock {
 public:
  ReleasedLock() : state_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~ReleasedLock() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  ReleasedLock(const ReleasedLock&) = delete;
  ReleasedLock& operator=(const ReleasedLock&) = delete;

 private:
  PyThreadState* const state_;
};

// Whether the communicator takes it: contiguous, in the CPU's memory or, by a copy, an accelerator's.
bool is_plain(const at::Tensor& tensor) {
  return (tensor.is_cpu() || at::accelerator::isAccelerator(tensor.device().type())) &&
         tensor.layout() == at::kStrided && tensor.is_contiguous();
}

// Tensors into which this one's values go as they are.
bool are_like(const std::vector<at::Tensor>& tensors, const at::Tensor& one) {
  return is_plain(one) && std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
           return is_plain(tensor) && tensor.device() == one.device() && tensor.scalar_type() == one.scalar_type() &&
                  tensor.numel() == one.numel();
         });
}

// The type in which its elements are summed, if they are.
std::optional<ElementType> summed_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kDouble:
      return ElementType::kFloat64;
    case at::kBFloat16:
      return ElementType::kBfloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    default:
      return {};
  }
}

std::optional<Reduction> find_reduction(const c10d::ReduceOp& operation) {
  if (operation.op_ == c10d::ReduceOp::AVG) return Reduction::kAverage;
  if (operation.op_ == c10d::ReduceOp::SUM || operation.op_ == c10d::ReduceOp::PREMUL_SUM) return Reduction::kSum;
  return {};
}

// What PREMUL_SUM multiplies each rank's values by; nothing for other operations.
std::optional<double> find_factor(const c10d::ReduceOp& operation) {
  if (operation.op_ != c10d::ReduceOp::PREMUL_SUM) return {};
  // By the name that every version of PyTorch has for it.
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(operation.supplement_.get());
  TORCH_CHECK(factor != nullptr, "motley: PREMUL_SUM without a factor");
  return factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor;
}

std::span<std::byte> bytes(const Operand& operand) {
  return {static_cast<std::byte*>(operand.memory.data_ptr()), operand.memory.nbytes()};
}

// The tensors' values in the CPU's memory, which is all that gloo's point-to-point operations know.
std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> staged;
  for (const at::Tensor& tensor : tensors) staged.push_back(tensor.cpu());
  return staged;
}

// Memory of the CPU into which gloo receives values for these tensors.
std::vector<at::Tensor> host_memory(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> staged;
  for (const at::Tensor& tensor : tensors) {
    staged.push_back(tensor.is_cpu() ? tensor : at::empty_like(tensor, tensor.options().device(at::kCPU)));
  }
  return staged;
}

// Copies received values to where they belong.
std::function<void()> copying(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& into) {
  return [from, into] {
    const at::NoGradGuard no_grad;
    for (std::size_t at = 0; at < from.size(); ++at) {
      if (!into[at].is_same(from[at])) into[at].copy_(from[at]);
    }
  };
}

}  // namespace

Backend::Backend(int rank, int size, std::chrono::milliseconds timeout, Group group, Delegate delegate)
    : c10d::Backend(rank, size),
      options_(c10::make_intrusive<Options>("motley", timeout)),
      delegate_(std::move(delegate)) {
  set_group(std::move(group));
  init();
  const std::lock_guard lock(backends().mutex);
  backends().all.insert(this);
}

Backend::~Backend() {
  shutdown();
}

void Backend::set_group(Group group) {
  group_ = std::move(group);
  if (group_.communicator) group_.devices = std::make_unique<DeviceQueue>(*group_.communicator, getRank());
  started_ = 0;
}

void Backend::shutdown_all() {
  for (;;) {
    Backend* one = nullptr;
    {
      const std::lock_guard lock(backends().mutex);
      if (backends().all.empty()) return;
      one = *backends().all.begin();
    }
    one->shutdown();
  }
}

void Backend::shutdown() {
  {
    const std::lock_guard lock(backends().mutex);
    if (backends().all.erase(this) == 0) return;
  }
  const ReleasedLock released;
  is_shut_down_ = true;
  leave();
  finished_->drop();
}

void Backend::leave() {
  const bool is_healthy = !group_.session || group_.session->health().has_value();
  group_.devices.reset();
  group_.communicator.reset();
  group_.session.reset();
  // Where a rank is lost gloo's threads may wait for others that have given up: they end with the process.
  if (!is_healthy) delegate_.gloo.release();
  delegate_.gloo.reset();
}

void Backend::renew(const std::function<Group()>& join, Delegate delegate) {
  TORCH_CHECK(!is_shut_down_, "motley: the process group was shut down");
  leave();
  set_group(join());
  delegate_ = std::move(delegate);
}

void Backend::abort() {
  const ReleasedLock released;
  if (group_.communicator) {
    group_.communicator->abort({ErrorCode::kInterrupted, "the process group was aborted", getRank()});
  }
}

void Backend::give_up(const std::string& reason) {
  if (group_.communicator) group_.communicator->abort({ErrorCode::kOutOfMemory, reason, getRank()});
}

bool Backend::is_out_of_memory() const {
  const Status health = group_.communicator ? group_.communicator->health() : Status();
  return !health && health.error().code == ErrorCode::kOutOfMemory;
}

c10d::ErrorType Backend::getError() {
  if (!group_.communicator) return c10d::ErrorType::SUCCESS;
  const Status health = group_.communicator->health();
  if (health) return c10d::ErrorType::SUCCESS;
  return health.error().code == ErrorCode::kTimeout ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::REMOTE_ERROR;
}

void Backend::check_rank(const char* operation, const char* role, std::int64_t rank) const {
  TORCH_CHECK_VALUE(0 <= rank && rank < getSize(), "motley:", operation, ": the ", role, " is rank ", rank,
                    " of the group; accepted: 0 to ", getSize() - 1);
}

c10d::Backend& Backend::gloo(const char* operation) const {
  TORCH_CHECK(!is_shut_down_, "motley: ", operation, ": the process group was shut down");
  TORCH_CHECK(delegate_.gloo, "motley: ", operation, ": ", delegate_.why_none);
  return *delegate_.gloo;
}

c10::intrusive_ptr<c10d::Work> Backend::delegated(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                                                  bool waits_by_itself, std::function<void()> unpack) const {
  finished_->drop();
  return c10::make_intrusive<DelegatedWork>(std::move(work), operation, group_.session, group_.words, waits_by_itself,
                                            std::move(unpack));
}

Operand Backend::operand(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return {tensor, tensor};
  return {tensor, value_or_throw(group_.devices->memory(tensor))};
}

c10::intrusive_ptr<c10d::Work> Backend::start(Collective what, c10d::OpType type, const char* title,
                                              std::chrono::milliseconds timeout, std::vector<Operand> inputs,
                                              std::vector<Operand> outputs) {
  TORCH_CHECK(!is_shut_down_, title, ": the process group was shut down");
  if (group_.communicator->is_own_thread()) refuse_chained(what.kind);
  finished_->drop();
  std::optional<nn::DeviceCopies> copies;
  std::vector<nn::DeviceCopies::Arriving> arriving;
  if (!outputs.empty() && !outputs.front().tensor.is_cpu()) {
    copies = value_or_throw(group_.devices->copies(outputs.front().tensor.device()));
    for (const Operand& input : inputs) {
      arriving.push_back(value_or_throw(copies->to_host(input.tensor, input.memory)));
    }
  }
  auto work = c10::make_intrusive<CollectiveWork>(getRank(), type, title, std::move(inputs), std::move(outputs),
                                                  std::move(copies));
  work->set_number(++started_);
  const auto allowed = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  what.seconds = std::chrono::duration<double>(allowed).count();
  what.done = [work, finished = finished_, group = group_.words](const Status& status) mutable {
    work->complete(status, group);
    finished->put(std::move(work));
  };
  group_.devices->start(std::move(what), std::move(arriving));
  return work;
}

// Where the future was complete before something was chained to it the same call comes from another thread, and waits
// for ranks that were refused it: so all are told.
void Backend::refuse_chained(CollectiveKind kind) {
  const std::string refusal = fmt::format(
      "{}: it was asked for in what is chained to another operation's future, as PyTorch's PowerSGD hooks do, where "
      "waiting for it would never end; accepted: operations that a hook itself starts, or another backend",
      to_string(kind));
  group_.communicator->abort({ErrorCode::kInvalidInput, refusal, getRank()});
  std::rethrow_exception(make_exception(refusal));
}

c10::intrusive_ptr<c10d::Work> Backend::done_alone(const at::Tensor& result, c10d::OpType type, const char* title) {
  const std::vector<Operand> values = {{result, result}};
  auto work = c10::make_intrusive<CollectiveWork>(getRank(), type, title, values, values, std::nullopt);
  work->complete({}, group_.words);
  return work;
}

bool Backend::supportsTensorAlloc(c10::DeviceIndex device) {
  return device < 0 && group_.communicator && group_.communicator->allocates();
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(!is_shut_down_ && supportsTensorAlloc(options.device().index()) && options.device().is_cpu(),
              "motley: memory is allocated for tensors of a CPU, in groups whose ranks share a host");
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  auto memory = group_.communicator->allocate(bytes);
  if (!memory) {
    TORCH_WARN_ONCE("motley: ", memory.error().message, "; buckets are copied instead");
    return at::empty({size}, options);
  }
  std::byte* const data = memory->get();
  return at::from_blob(data, {size}, [kept = std::move(*memory)](void*) mutable { kept.reset(); }, options);
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (delegate_.gloo) delegate_.gloo->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Work> Backend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const c10d::BroadcastOptions& options) {
  check_rank("broadcast", "root", options.rootRank);
  if (group_.communicator && tensors.size() == 1 && is_plain(tensors[0])) {
    const bool is_root = options.rootRank == getRank();
    const Operand values = operand(tensors[0]);
    return start({.kind = CollectiveKind::kBroadcast,
                  .root = static_cast<int>(options.rootRank),
                  .input = is_root ? bytes(values) : std::span<std::byte>(),
                  .output = bytes(values)},
                 c10d::OpType::BROADCAST, "motley:broadcast", options.timeout,
                 is_root ? std::vector{values} : std::vector<Operand>(), {values});
  }
  return delegated(gloo("broadcast").broadcast(tensors, options), "broadcast");
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) {
  const auto reduction = find_reduction(options.reduceOp);
  if (reduction && getSize() == 1 && tensors.size() == 1 && is_plain(tensors[0])) {
    TORCH_CHECK(!is_shut_down_, "motley: all_reduce: the process group was shut down");
    if (const auto factor = find_factor(options.reduceOp)) tensors[0].mul_(*factor);
    return done_alone(tensors[0], c10d::OpType::ALLREDUCE, "motley:all_reduce");
  }
  if (group_.communicator && reduction && tensors.size() == 1 && is_plain(tensors[0])) {
    if (const auto type = summed_type(tensors[0])) {
      if (const auto factor = find_factor(options.reduceOp)) tensors[0].mul_(*factor);
      const Operand values = operand(tensors[0]);
      return start({.kind = CollectiveKind::kAllReduce,
                    .type = *type,
                    .reduction = *reduction,
                    .input = bytes(values),
                    .output = bytes(values)},
                   c10d::OpType::ALLREDUCE, "motley:all_reduce", options.timeout, {values}, {values});
    }
  }
  return delegated(gloo("all_reduce").allreduce(tensors, options), "all_reduce");
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                         const c10d::AllreduceOptions& options) {
  return delegated(gloo("all_reduce of sparse tensors").allreduce_sparse(tensors, options),
                   "all_reduce of sparse tensors");
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                            const c10d::AllreduceCoalescedOptions& options) {
  return delegated(gloo("all_reduce_coalesced").allreduce_coalesced(tensors, options), "all_reduce_coalesced");
}

c10::intrusive_ptr<c10d::Work> Backend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  check_rank("reduce", "root", options.rootRank);
  return delegated(gloo("reduce").reduce(tensors, options), "reduce");
}

c10::intrusive_ptr<c10d::Work> Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& options) {
  if (group_.communicator && inputs.size() == 1 && outputs.size() == 1 && are_like(outputs[0], inputs[0]) &&
      static_cast<int>(outputs[0].size()) == getSize()) {
    const Operand input = operand(inputs[0]);
    const at::Tensor flat =
        at::empty({getSize(), inputs[0].numel()}, input.memory.options().pinned_memory(!inputs[0].is_cpu()));
    std::vector<Operand> results;
    for (int rank = 0; rank < getSize(); ++rank) results.push_back({outputs[0][rank], flat[rank]});
    return start({.kind = CollectiveKind::kAllGather, .input = bytes(input), .output = bytes({flat, flat})},
                 c10d::OpType::ALLGATHER, "motley:all_gather", options.timeout, {input}, std::move(results));
  }
  return delegated(gloo("all_gather").allgather(outputs, inputs, options), "all_gather");
}

c10::intrusive_ptr<c10d::Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  if (group_.communicator && is_plain(output) && is_plain(input) && output.device() == input.device() &&
      output.scalar_type() == input.scalar_type() && output.numel() == input.numel() * getSize()) {
    const Operand values = operand(input);
    const Operand results = operand(output);
    return start({.kind = CollectiveKind::kAllGather, .input = bytes(values), .output = bytes(results)},
                 c10d::OpType::_ALLGATHER_BASE, "motley:all_gather_into_tensor", options.timeout, {values}, {results});
  }
  return delegated(gloo("all_gather_into_tensor")._allgather_base(output, input, options), "all_gather_into_tensor");
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::AllgatherOptions& options) {
  return delegated(gloo("all_gather_coalesced").allgather_coalesced(outputs, inputs, options), "all_gather_coalesced");
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                        std::vector<at::Tensor>& inputs,
                                                                        const c10d::AllgatherOptions& options) {
  return delegated(gloo("all_gather_into_tensor_coalesced").allgather_into_tensor_coalesced(outputs, inputs, options),
                   "all_gather_into_tensor_coalesced");
}

c10::intrusive_ptr<c10d::Work> Backend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) {
  check_rank("gather", "root", options.rootRank);
  return delegated(gloo("gather").gather(outputs, inputs, options), "gather");
}

c10::intrusive_ptr<c10d::Work> Backend::scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ScatterOptions& options) {
  check_rank("scatter", "root", options.rootRank);
  return delegated(gloo("scatter").scatter(outputs, inputs, options), "scatter");
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return delegated(gloo("reduce_scatter").reduce_scatter(outputs, inputs, options), "reduce_scatter");
}

c10::intrusive_ptr<c10d::Work> Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& options) {
  const auto reduction = find_reduction(options.reduceOp);
  const auto type = summed_type(input);
  const bool is_split = is_plain(output) && is_plain(input) && output.device() == input.device() &&
                        output.scalar_type() == input.scalar_type() && output.numel() * getSize() == input.numel();
  if (reduction && getSize() == 1 && is_split) {
    TORCH_CHECK(!is_shut_down_, "motley: reduce_scatter_tensor: the process group was shut down");
    const at::NoGradGuard no_grad;
    const auto factor = find_factor(options.reduceOp);
    output.copy_((factor ? input * *factor : input).view_as(output));
    return done_alone(output, c10d::OpType::_REDUCE_SCATTER_BASE, "motley:reduce_scatter_tensor");
  }
  if (group_.communicator && reduction && type && is_split) {
    const auto factor = find_factor(options.reduceOp);
    const Operand values = operand(factor ? input * *factor : input);
    const Operand result = operand(output);
    return start({.kind = CollectiveKind::kReduceScatter,
                  .type = *type,
                  .reduction = *reduction,
                  .input = bytes(values),
                  .output = bytes(result)},
                 c10d::OpType::_REDUCE_SCATTER_BASE, "motley:reduce_scatter_tensor", options.timeout, {values},
                 {result});
  }
  return delegated(gloo("reduce_scatter_tensor")._reduce_scatter_base(output, input, options), "reduce_scatter_tensor");
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                        std::vector<at::Tensor>& inputs,
                                                                        const c10d::ReduceScatterOptions& options) {
  return delegated(gloo("reduce_scatter_tensor_coalesced").reduce_scatter_tensor_coalesced(outputs, inputs, options),
                   "reduce_scatter_tensor_coalesced");
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& output_counts,
                                                      std::vector<std::int64_t>& input_counts,
                                                      const c10d::AllToAllOptions& options) {
  return delegated(gloo("all_to_all_single").alltoall_base(output, input, output_counts, input_counts, options),
                   "all_to_all_single");
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                 const c10d::AllToAllOptions& options) {
  // gloo exchanges parts of one tensor.
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> output_counts;
  std::vector<std::int64_t> input_counts;
  for (const at::Tensor& input : inputs) {
    flat.push_back(input.reshape(-1));
    input_counts.push_back(input.numel());
  }
  for (const at::Tensor& output : outputs) output_counts.push_back(output.numel());
  const std::int64_t total = std::accumulate(output_counts.begin(), output_counts.end(), std::int64_t{0});
  at::Tensor sent = at::cat(flat);
  at::Tensor received = at::empty({total}, sent.options());
  const auto parts = received.split_with_sizes(output_counts);
  auto work = gloo("all_to_all").alltoall_base(received, sent, output_counts, input_counts, options);
  return delegated(std::move(work), "all_to_all", false, [parts, outputs] {
    for (std::size_t part = 0; part < parts.size(); ++part) outputs[part].copy_(parts[part].view_as(outputs[part]));
  });
}

c10::intrusive_ptr<c10d::Work> Backend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  check_rank("send", "destination", destination);
  std::vector<at::Tensor> staged = to_host(tensors);
  return delegated(gloo("send").send(staged, destination, tag), "send", true);
}

c10::intrusive_ptr<c10d::Work> Backend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  check_rank("recv", "source", source);
  std::vector<at::Tensor> staged = host_memory(tensors);
  return delegated(gloo("recv").recv(staged, source, tag), "recv", true, copying(staged, tensors));
}

c10::intrusive_ptr<c10d::Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  std::vector<at::Tensor> staged = host_memory(tensors);
  return delegated(gloo("recv from any rank").recvAnysource(staged, tag), "recv from any rank", true,
                   copying(staged, tensors));
}

c10::intrusive_ptr<c10d::Work> Backend::barrier(const c10d::BarrierOptions& options) {
  if (group_.communicator) return start({}, c10d::OpType::BARRIER, "motley:barrier", options.timeout, {}, {});
  return delegated(gloo("barrier").barrier(options), "barrier");
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  gloo("monitored_barrier").monitoredBarrier(options, wait_all_ranks);
}

void Backend::setSequenceNumberForGroup() {
  if (delegate_.gloo) delegate_.gloo->setSequenceNumberForGroup();
}

std::uint64_t Backend::getSequenceNumberForGroup() {
  return delegate_.gloo ? delegate_.gloo->getSequenceNumberForGroup() : 0;
}

}  // namespace motley::bind
