#include "motley/bind/work.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

namespace motley::bind {
namespace {

constexpr auto kHealthTime = std::chrono::milliseconds(50);  // between two looks at the session while gloo works

// What went wrong in an operation of gloo's: what the session knows of a lost rank, else gloo's own words.
std::exception_ptr explain(const std::exception_ptr& problem, const std::weak_ptr<net::Session>& session,
                           const char* operation, const std::string& group) {
  std::string words = "it was aborted";
  try {
    std::rethrow_exception(problem);
  } catch (const c10::Error& error) {
    words = error.what_without_backtrace();
  } catch (const std::exception& error) {
    words = error.what();
  }
  const auto alive = session.lock();
  const Error seen{ErrorCode::kPeerLost, words, -1};
  const Error cause = alive ? net::first_cause(*alive, seen) : seen;
  return make_exception(fmt::format("{}{}: {}", operation, group, cause.message));
}

std::vector<at::Tensor> tensors(const std::vector<Operand>& operands) {
  std::vector<at::Tensor> all;
  for (const Operand& operand : operands) all.push_back(operand.tensor);
  return all;
}

}  // namespace

std::exception_ptr make_exception(const std::string& message) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, "motley: " + message));
}

CollectiveWork::CollectiveWork(int rank, c10d::OpType type, const char* title, std::vector<Operand> inputs,
                               std::vector<Operand> outputs, std::optional<nn::DeviceCopies> copies)
    : Work(rank, type, title, tensors(inputs)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      results_(tensors(outputs_)),
      copies_(std::move(copies)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          is_on_device() ? std::vector<c10::Device>{results_.front().device()} : std::vector<c10::Device>())) {
  if (!copies_ || !inputs_.empty()) return;
  const c10::Device device = results_.front().device();
  asked_.emplace(device.type());
  asked_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void CollectiveWork::complete(const Status& status, const std::string& group) {
  const Status done = status ? deliver() : status;
  if (done) return finish();
  const std::exception_ptr problem = make_exception(done.error().message + group);
  future_->setError(problem);
  finish(problem);
}

// The future, too, takes the stream that is the current one for that of its results.
Status CollectiveWork::deliver() {
  const auto mark = [this] {
    if (is_on_device()) {
      const c10::Device device = results_.front().device();
      delivered_.emplace(device.type());
      delivered_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    future_->markCompleted(c10::IValue(results_));
  };
  if (copies_) {
    std::vector<nn::DeviceCopies::Fill> fills;
    for (const Operand& output : outputs_) fills.push_back({output.memory, output.tensor});
    return copies_->fill(fills, mark, asked_ ? &*asked_ : nullptr);
  }
  for (const Operand& output : outputs_) {
    if (output.is_copied()) std::memcpy(output.tensor.data_ptr(), output.memory.data_ptr(), output.tensor.nbytes());
  }
  mark();
  return {};
}

void CollectiveWork::synchronize() {
  if (!future_->completed()) {  // isCompleted() takes the lock that wait() calls this with
    wait();                     // which comes here again
    return;
  }
  if (!delivered_) return;
  const c10::Device device = results_.front().device();
  delivered_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

DelegatedWork::DelegatedWork(c10::intrusive_ptr<c10d::Work> work, const char* operation,
                             std::weak_ptr<net::Session> session, std::string group, bool waits_by_itself,
                             std::function<void()> unpack)
    : Work(-1, work->retrieveOpType()),
      work_(std::move(work)),
      operation_(operation),
      session_(std::move(session)),
      group_(std::move(group)),
      waits_by_itself_(waits_by_itself),
      unpack_(std::make_shared<Once>(std::move(unpack))) {}

std::exception_ptr DelegatedWork::exception() const {
  const std::exception_ptr problem = work_->exception();
  return problem ? explain(problem, session_, operation_, group_) : nullptr;
}

bool DelegatedWork::wait(std::chrono::milliseconds timeout) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    bool done = false;
    const bool was_completed = work_->isCompleted();
    try {
      done = work_->wait(waits_by_itself_ ? timeout : kHealthTime);
    } catch (...) {
      std::exception_ptr problem = std::current_exception();
      const bool is_late = timeout != kNoTimeout && std::chrono::steady_clock::now() - begin > timeout;
      const auto session = session_.lock();
      const bool is_healthy = !session || session->health().has_value();
      if (!waits_by_itself_ && !was_completed) {
        if (work_->isCompleted()) {
          problem = work_->exception();  // none, where it succeeded just after the wait for it had ended
        } else if (!is_late && is_healthy) {
          problem = nullptr;
        }
      }
      if (problem) std::rethrow_exception(explain(problem, session_, operation_, group_));
      continue;
    }
    (*unpack_)();
    return done;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> DelegatedWork::getFuture() {
  const auto future = work_->getFuture();
  return future->then(
      [session = session_, operation = operation_, group = group_, unpack = unpack_](c10::ivalue::Future& done) {
        if (done.hasError()) std::rethrow_exception(explain(done.exception_ptr(), session, operation, group));
        (*unpack)();
        return done.value();
      },
      future->elementType());
}

}  // namespace motley::bind
