// A thread of a simulated process: a function with a stack of its own, which runs until it gives the processor back.
// All of them share one thread of the system, so that what happens in which order is the simulator's to say.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace motley::simulation {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs it until it suspends itself or ends. Not from within a fiber.
  void resume();
  // Of the fiber that runs: back to resume().
  void suspend();
  bool has_ended() const { return has_ended_; }
  // It never runs again, and its stack goes to others. What stands there is not destroyed, as in a process that is
  // killed.
  void abandon();

 private:
  struct ThreadState {
    void* caught_exceptions = nullptr;
    unsigned uncaught_exceptions = 0;
    int error_number = 0;
  };
  static void enter();
  void swap_thread_state();

  std::function<void()> body_;
  std::byte* stack_ = nullptr;
  void* own_pointer_ = nullptr;  // of the stack, while it is suspended
  void* resumer_pointer_ = nullptr;
  ThreadState state_;  // its own while it is suspended, else the resumer's
  bool has_ended_ = false;
};

}  // namespace motley::simulation
