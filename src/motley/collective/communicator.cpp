// The queue of operations and the thread that works it off.
#include "motley/collective/communicator.h"

#include "motley/base/os/signals.h"
#include "motley/collective/waiting.h"

namespace motley::collective {

const char* to_string(CollectiveKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"};
  return kNames[static_cast<std::size_t>(kind)];
}

const char* to_string(Reduction reduction) {
  return reduction == Reduction::kSum ? "sum" : "average";
}

Result<std::unique_ptr<Communicator>> Communicator::create(net::Session& session, Transport transport,
                                                           const Deadline& deadline) {
  if (transport == Transport::kAuto && session.membership().on_one_host()) {
    return make_shared_memory_communicator(session, deadline);
  }
  return make_tcp_communicator(session, deadline);
}

Communicator::Communicator(net::Session& session)
    : session_(session), rank_(session.membership().rank), size_(session.membership().size()) {}

void Communicator::begin() {
  thread_ = start_thread([this] { run(); });
}

void Communicator::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t Communicator::start(Collective collective) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    Pending& pending = queue_.emplace_back();
    pending.deadline = Deadline::after(collective.seconds);
    pending.segments = count_segments(collective);
    pending.what = std::move(collective);
    pending.number = number = ++started_;
    pending.first_segment = next_segment_;
    next_segment_ += pending.segments;
    session_.set_phase(number, to_string(pending.what.kind));
    if (!is_broken_) queued();
  }
  wake_.notify_one();
  return number;
}

void Communicator::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Pending& oldest = queue_.front();
    lock.unlock();
    if (!is_broken_) {
      if (const Status outcome = finish(oldest); !outcome) break_with(outcome.error());
    }
    // An operation that an abort found under way has failed, also where the other ranks let it end.
    const Status finished = is_broken_ ? health() : Status();
    lock.lock();
    const Pending ended = std::move(oldest);
    queue_.pop_front();
    lock.unlock();
    ended.what.done(finished);
    lock.lock();
  }
}

// The first error stands. What a session told us its ranks know already.
void Communicator::break_with(const Error& error) {
  {
    const std::lock_guard lock(broken_mutex_);
    if (broken_) return;
    broken_ = error;
    is_broken_ = true;
  }
  if (session_.health()) session_.abort(error);
}

void Communicator::abort(const Error& error) {
  break_with(error);
}

Status Communicator::health() const {
  if (!is_broken_) return session_.health();
  const std::lock_guard lock(broken_mutex_);
  return fail(*broken_);
}

Status Communicator::check(const Pending& pending, const std::function<std::vector<int>()>& missing) const {
  if (is_broken_) {
    const std::lock_guard lock(broken_mutex_);
    return fail(*broken_);
  }
  return check_wait(session_, pending.deadline, pending.name(), missing);
}

}  // namespace motley::collective
