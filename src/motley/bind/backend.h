// The backend `motley` of torch.distributed: c10d::Backend over Motley's communicator for the operations that training
// spends its time in, and over a ProcessGroupGloo of the same ranks for all others. Tensors are on the CPU or on an
// accelerator, of which the other ranks know nothing: ranks with and without one make a group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "motley/bind/device_queue.h"
#include "motley/bind/work.h"
#include "motley/collective/communicator.h"

namespace motley::bind {

// One rank's end of a process group. Its calls come from Python's threads, which hold no lock of Python's then; ranks
// make the same calls in the same order.
class Backend final : public c10d::Backend {
 public:
  struct Delegate {
    c10::intrusive_ptr<c10d::Backend> gloo;  // null where there is none
    std::string why_none;                    // then: what a user can do about it
  };

  // Of one rank alone, session and communicator are null.
  struct Group {
    std::shared_ptr<net::Session> session;
    std::unique_ptr<collective::Communicator> communicator;
    std::unique_ptr<DeviceQueue> devices;  // what starts operations; the backend makes it
    std::string words;                     // for messages: ", in the group of ranks 1, 3", or empty
  };

  Backend(int rank, int size, std::chrono::milliseconds timeout, Group group, Delegate delegate);
  ~Backend() override;

  // Shuts down all that there are: before the interpreter ends, so that no thread needs its lock after that.
  static void shutdown_all();

  const std::string getBackendName() const override { return "motley"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  std::chrono::milliseconds timeout() const { return options_->timeout; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& output_counts,
                                               std::vector<std::int64_t>& input_counts,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;

  // What its communicator goes over; "none" of one rank.
  std::string transport() const { return group_.communicator ? group_.communicator->transport() : "none"; }

  // In memory that all ranks of the host map, so that reducing it copies nothing.
  bool supportsTensorAlloc(c10::DeviceIndex device) override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  // Ends operations under way with an error, on all ranks.
  void abort() override;
  // The same because this rank's device has too little memory for what it is asked to do; all ranks then know it.
  void give_up(const std::string& reason);
  bool is_out_of_memory() const;
  // Begins again after that, with connections that all ranks make anew.
  void renew(const std::function<Group()>& join, Delegate delegate);
  // Waits for operations under way, as long as their timeouts allow, and closes the connections.
  void shutdown() override;

 private:
  // An exception for a rank that is none of the group's.
  void check_rank(const char* operation, const char* role, std::int64_t rank) const;
  // The group that does what this one leaves to it, or an exception that names the operation.
  c10d::Backend& gloo(const char* operation) const;
  c10::intrusive_ptr<c10d::Work> delegated(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                                           bool waits_by_itself = false, std::function<void()> unpack = {}) const;
  // A tensor with memory of this machine: pinned, and not initialised, for one of an accelerator.
  Operand operand(const at::Tensor& tensor);
  // All operands are on one device. What an accelerator has computed of the inputs is copied first.
  c10::intrusive_ptr<c10d::Work> start(collective::Collective what, c10d::OpType type, const char* title,
                                       std::chrono::milliseconds timeout, std::vector<Operand> inputs,
                                       std::vector<Operand> outputs);
  [[noreturn]] void refuse_chained(collective::CollectiveKind kind);
  // An operation that a group of one rank has carried out already.
  c10::intrusive_ptr<c10d::Work> done_alone(const at::Tensor& result, c10d::OpType type, const char* title);

  void set_group(Group group);
  // Closes the connections.
  void leave();

  const c10::intrusive_ptr<Options> options_;
  Delegate delegate_;
  Group group_;
  const std::shared_ptr<FinishedWorks> finished_ = std::make_shared<FinishedWorks>();
  std::uint64_t started_ = 0;  // operations of this group
  bool is_shut_down_ = false;
};

}  // namespace motley::bind
