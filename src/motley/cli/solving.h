// How commands ask a planner: with a line of progress, until the user interrupts, and for the best number of
// micro-batches.
#pragma once

#include <csignal>
#include <cstdint>
#include <stop_token>
#include <thread>
#include <vector>

#include "motley/planning/search/planner.h"

namespace motley::cli {

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

struct SearchLimits {
  double seconds = 60;
  std::uint64_t seed = 1;
};

// The planner's answer, with a line that replaces itself meanwhile, on a terminal only.
Result<planning::Answer> ask(const planning::Planner& planner, planning::Request request);

// Of problems that differ in the number of micro-batches the one whose plan is best, and that plan, with what is proved
// of all of them. They share the time.
struct Solved {
  const planning::Problem* problem = nullptr;
  planning::Answer answer;
};
Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop);

}  // namespace motley::cli
