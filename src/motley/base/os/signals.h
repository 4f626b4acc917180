// Signals: how a user stops what runs (Ctrl-C and kill, taken by whoever waits for them), and threads of a library's
// own, which take none of these: those are for the threads that the program made itself.
#pragma once

#include <algorithm>
#include <csignal>
#include <stop_token>
#include <system_error>
#include <thread>
#include <utility>

#include "motley/base/result.h"

namespace motley {

// SIGINT and SIGTERM, blocked in this thread and those that it starts as long as this lives: made before any thread.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Waits for one of them and returns which.
  int wait() const {
    int signal = 0;
    while (sigwait(&signals_, &signal) != 0) continue;
    return signal;
  }
  // Waits for at most a second; 0: none came.
  int wait_for(long nanoseconds) const {
    const timespec time{0, nanoseconds};
    return std::max(0, sigtimedwait(&signals_, nullptr, &time));
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

// Asks a long computation to stop when the user interrupts, by a thread that lives as long as this.
class InterruptStop {
 public:
  InterruptStop()
      : watcher_([this](const std::stop_token& ending) {
          while (!ending.stop_requested()) {
            if (signals_.wait_for(50'000'000) > 0) stop_.request_stop();
          }
        }) {}
  std::stop_token token() const { return stop_.get_token(); }

 private:
  StopSignals signals_;
  std::stop_source stop_;
  std::jthread watcher_;  // ends before what it uses
};

// All signals but those of a thread's own faults, blocked in this thread and those that it starts as long as this
// lives: where the signal of a fault is blocked, the kernel ends the process without calling its handler.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// Runs `work` in a thread that takes no signals but those of its own faults.
template <class Work>
std::thread start_thread(Work work) {
  const BlockedSignals blocked;
  return std::thread(std::move(work));
}

// The same, or kUnavailable where the system gives this process no more threads.
template <class Work>
Result<std::thread> try_start_thread(Work work) {
  try {
    return start_thread(std::move(work));
  } catch (const std::system_error& problem) {
    return fail(ErrorCode::kUnavailable, "no thread could be started: {}", problem.code().message());
  }
}

// The same, and `otherwise(error)` here where no thread could be started; then what is returned is none.
template <class Work, class Otherwise>
std::thread start_thread_or(Work work, const Otherwise& otherwise) {
  auto thread = try_start_thread(std::move(work));
  if (thread) return std::move(*thread);
  otherwise(thread.error());
  return {};
}

}  // namespace motley
