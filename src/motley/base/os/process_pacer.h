// Makes processes as slow as devices that are not here: each may use so many processors' worth of CPU time and no more,
// by being stopped (SIGSTOP) while it is ahead of that and continued when it is not. What a process computes therefore
// takes as much longer, whatever it is, and what it waits for does not. The kernel's own way, a quota of its control
// group, needs rights that containers seldom give, and periods longer than short steps.
#pragma once

#include <sys/types.h>

#include <thread>
#include <vector>

#include "motley/base/result.h"

namespace motley {

// What a process has been allowed and has used. Pure; times are seconds.
class CpuAllowance {
 public:
  // At `rate` processors (0 < rate), from this moment on, with this much CPU time used before.
  CpuAllowance(double rate, double now, double used) : rate_(rate), last_(now), allowed_(used) {}
  // Whether a process that has used so much may go on. Time in which it had nothing to do is not saved up, but for a
  // moment.
  bool may_run(double now, double used);

 private:
  double rate_, last_, allowed_;
};

class ProcessPacer {
 public:
  struct Process {
    pid_t pid = 0;
    double rate = 1;  // processors
  };
  // Begins to pace them, on a thread of its own. Processes may end meanwhile, and must not be waited for (reaped)
  // before stop(). Errors (kInvalidInput): a rate that is not positive; (kUnavailable): a process that is not there.
  static Result<ProcessPacer> start(std::vector<Process> processes);
  ~ProcessPacer() { stop(); }
  ProcessPacer(ProcessPacer&&) = default;
  ProcessPacer& operator=(ProcessPacer&&) = delete;

  // Stops pacing and lets all go on. Safe to call again.
  void stop();

 private:
  explicit ProcessPacer(std::jthread thread) : thread_(std::move(thread)) {}
  std::jthread thread_;
};

// Seconds that the threads of a process wanted a processor and had none, over its life so far; 0 where that is not
// known.
double seconds_without_processor(pid_t pid);

}  // namespace motley
