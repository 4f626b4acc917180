// How a long computation ends early when the user interrupts.
#pragma once

#include <csignal>
#include <stop_token>
#include <thread>

namespace motley {

// Asks for a stop when the user interrupts. SIGINT is blocked in all threads and taken by this one, as long as it
// lives.
class InterruptStop {
 public:
  InterruptStop() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    watcher_ = std::jthread([this](const std::stop_token& ending) {
      const timespec wait{0, 50'000'000};
      while (!ending.stop_requested()) {
        if (sigtimedwait(&signals_, nullptr, &wait) > 0) stop_.request_stop();
      }
    });
  }
  ~InterruptStop() {
    watcher_.request_stop();
    watcher_.join();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t signals_{};
  sigset_t before_{};
  std::stop_source stop_;
  std::jthread watcher_;
};

}  // namespace motley
