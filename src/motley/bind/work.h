// The works that the backend hands out: what c10d knows of an operation under way.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/session.h"
#include "motley/nn/gradients/device_copy.h"

namespace motley::bind {

// What becomes a DistBackendError in Python.
std::exception_ptr make_exception(const std::string& message);
// The value, or the error as that.
template <class Value>
Value value_or_throw(Result<Value> value) {
  if (!value) std::rethrow_exception(make_exception(value.error().message));
  return std::move(*value);
}

// A tensor of an operation and the memory of this machine through which it goes: its own, or memory for a copy.
struct Operand {
  at::Tensor tensor;
  at::Tensor memory;

  bool is_copied() const { return tensor.data_ptr() != memory.data_ptr(); }
};

// An operation of the communicator, whose thread completes it.
class CollectiveWork final : public c10d::Work {
 public:
  // `inputs` and `outputs` are kept until it is over. Outputs are then copied from their memory; with `copies`, of the
  // accelerator that they are all on, by these.
  CollectiveWork(int rank, c10d::OpType type, const char* title, std::vector<Operand> inputs,
                 std::vector<Operand> outputs, std::optional<nn::DeviceCopies> copies);

  // By the communicator's thread, once. `group` says in an error which ranks' group it is.
  void complete(const Status& status, const std::string& group);
  void set_number(std::uint64_t number) { number_ = number; }

  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::uint64_t getSequencenumber() const override { return number_; }
  // What the current stream is given from now on comes after the results. Waits until the operation is over.
  void synchronize() override;

 private:
  bool is_on_device() const { return !results_.empty() && !results_.front().is_cpu(); }
  Status deliver();

  const std::vector<Operand> inputs_;
  const std::vector<Operand> outputs_;
  const std::vector<at::Tensor> results_;
  const std::optional<nn::DeviceCopies> copies_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::optional<c10::Event> asked_;      // on a device, without an input that comes from there after what is before it
  std::optional<c10::Event> delivered_;  // on a device: the results are there, once the operation is over
  std::uint64_t number_ = 0;
};

// An operation that gloo carries out. It fails with what the session knows, and as soon as that knows it: gloo itself
// notices the loss of a neighbour only, and ranks may wait for others which have given up.
class DelegatedWork final : public c10d::Work {
 public:
  // `waits_by_itself`: of a point-to-point operation, which ends in its wait(). `unpack` is called once it has
  // succeeded.
  DelegatedWork(c10::intrusive_ptr<c10d::Work> work, const char* operation, std::weak_ptr<net::Session> session,
                std::string group, bool waits_by_itself, std::function<void()> unpack);

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return work_->result(); }
  void synchronize() override { work_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { work_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }

 private:
  // Does something the first time that it is asked to.
  class Once {
   public:
    explicit Once(std::function<void()> what) : what_(std::move(what)) {}
    void operator()() {
      if (what_) std::call_once(flag_, what_);
    }

   private:
    const std::function<void()> what_;
    std::once_flag flag_;
  };

  const c10::intrusive_ptr<c10d::Work> work_;
  const char* const operation_;
  const std::weak_ptr<net::Session> session_;
  const std::string group_;
  const bool waits_by_itself_;
  const std::shared_ptr<Once> unpack_;
};

// Works that are complete. The communicator's thread leaves them here and the caller's threads take them away, so that
// it never drops a tensor's last reference: where Python has seen the tensor that needs Python's lock, which cannot be
// had while the interpreter ends.
class FinishedWorks {
 public:
  void put(c10::intrusive_ptr<CollectiveWork> work) {
    const std::lock_guard lock(mutex_);
    works_.push_back(std::move(work));
  }
  void drop() {
    std::vector<c10::intrusive_ptr<CollectiveWork>> works;
    const std::lock_guard lock(mutex_);
    works.swap(works_);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<CollectiveWork>> works_;
};

}  // namespace motley::bind
