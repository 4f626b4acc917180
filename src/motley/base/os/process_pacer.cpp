#include "motley/base/os/process_pacer.h"

#include <algorithm>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "motley/base/clock.h"

namespace motley {
namespace {

constexpr double kTick = 1e-3;   // between two looks at a process
constexpr double kSaved = 2e-3;  // CPU time that may be used later, seconds: of a few ticks that came late

struct Paced {
  pid_t pid;
  clockid_t clock;
  CpuAllowance allowance;
  bool is_stopped = false;
};

double read(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return 0;  // it has ended
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void pace(const std::stop_token& stop, std::vector<Paced> processes) {
  double next = monotonic_seconds();
  while (!stop.stop_requested()) {
    const double now = monotonic_seconds();
    for (Paced& process : processes) {
      const bool must_stop = !process.allowance.may_run(now, read(process.clock));
      if (must_stop == process.is_stopped) continue;
      ::kill(process.pid, must_stop ? SIGSTOP : SIGCONT);
      process.is_stopped = must_stop;
    }
    next = std::max(next + kTick, now);
    SteadyClock::instance().sleep_until(next);
  }
  for (const Paced& process : processes) {
    if (process.is_stopped) ::kill(process.pid, SIGCONT);
  }
}

}  // namespace

bool CpuAllowance::may_run(double now, double used) {
  allowed_ += rate_ * (now - last_);
  last_ = now;
  allowed_ = std::min(allowed_, used + kSaved);
  return used < allowed_;
}

Result<ProcessPacer> ProcessPacer::start(std::vector<Process> processes) {
  std::vector<Paced> paced;
  const double now = monotonic_seconds();
  for (const auto& [pid, rate] : processes) {
    if (!(rate > 0)) return fail(ErrorCode::kInvalidInput, "a speed of {} processors; more than 0 is accepted", rate);
    clockid_t clock = 0;
    if (clock_getcpuclockid(pid, &clock) != 0) {
      return fail(ErrorCode::kUnavailable, "process {} is not there to be slowed down", pid);
    }
    paced.push_back({pid, clock, CpuAllowance(rate, now, read(clock))});
  }
  return ProcessPacer(std::jthread(pace, std::move(paced)));
}

void ProcessPacer::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

double seconds_without_processor(pid_t pid) {
  double total = 0;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), gone)) {
    std::ifstream file(thread.path() / "schedstat");
    double ran = 0, waited = 0;
    if (file >> ran >> waited) total += waited * 1e-9;
  }
  return total;
}

}  // namespace motley
