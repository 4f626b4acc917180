#include "motley/bind/backend.h"

namespace motley::bind {

Backend::Backend(int rank, int size, std::chrono::milliseconds timeout, Delegate delegate)
    : c10d::Backend(rank, size),
      options_(c10::make_intrusive<Options>("motley", timeout)),
      delegate_(std::move(delegate)) {
  init();
}

c10d::Backend& Backend::gloo(const char* operation) const {
  TORCH_CHECK(delegate_.gloo, "motley: ", operation, ": ", delegate_.why_none);
  return *delegate_.gloo;
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  if (delegate_.gloo) delegate_.gloo->setTimeout(timeout);
}

c10::intrusive_ptr<c10d::Work> Backend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const c10d::BroadcastOptions& options) {
  return gloo("broadcast").broadcast(tensors, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) {
  return gloo("all_reduce").allreduce(tensors, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                         const c10d::AllreduceOptions& options) {
  return gloo("all_reduce of sparse tensors").allreduce_sparse(tensors, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                            const c10d::AllreduceCoalescedOptions& options) {
  return gloo("all_reduce_coalesced").allreduce_coalesced(tensors, options);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) {
  return gloo("reduce").reduce(tensors, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return gloo("all_gather").allgather(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return gloo("all_gather_into_tensor")._allgather_base(output, input, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                            std::vector<at::Tensor>& inputs,
                                                            const c10d::AllgatherOptions& options) {
  return gloo("all_gather_coalesced").allgather_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                        std::vector<at::Tensor>& inputs,
                                                                        const c10d::AllgatherOptions& options) {
  return gloo("all_gather_into_tensor_coalesced").allgather_into_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options) {
  return gloo("gather").gather(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ScatterOptions& options) {
  return gloo("scatter").scatter(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return gloo("reduce_scatter").reduce_scatter(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& options) {
  return gloo("reduce_scatter_tensor")._reduce_scatter_base(output, input, options);
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                        std::vector<at::Tensor>& inputs,
                                                                        const c10d::ReduceScatterOptions& options) {
  return gloo("reduce_scatter_tensor_coalesced").reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& output_counts,
                                                      std::vector<std::int64_t>& input_counts,
                                                      const c10d::AllToAllOptions& options) {
  return gloo("all_to_all_single").alltoall_base(output, input, output_counts, input_counts, options);
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return gloo("all_to_all").alltoall(outputs, inputs, options);
}

c10::intrusive_ptr<c10d::Work> Backend::send(std::vector<at::Tensor>& tensors, int destination, int tag) {
  return gloo("send").send(tensors, destination, tag);
}

c10::intrusive_ptr<c10d::Work> Backend::recv(std::vector<at::Tensor>& tensors, int source, int tag) {
  return gloo("recv").recv(tensors, source, tag);
}

c10::intrusive_ptr<c10d::Work> Backend::recvAnysource(std::vector<at::Tensor>& tensors, int tag) {
  return gloo("recv from any rank").recvAnysource(tensors, tag);
}

c10::intrusive_ptr<c10d::Work> Backend::barrier(const c10d::BarrierOptions& options) {
  return gloo("barrier").barrier(options);
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
