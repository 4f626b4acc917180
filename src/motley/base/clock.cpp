#include "motley/base/clock.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

namespace motley {
namespace {

double read_clock(clockid_t id) {
  timespec time{};
  clock_gettime(id, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double monotonic_seconds() {
  return read_clock(CLOCK_MONOTONIC);
}
double wall_seconds() {
  return read_clock(CLOCK_REALTIME);
}
double process_cpu_seconds() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

double peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

double SteadyClock::now() const {
  return monotonic_seconds();
}

void SteadyClock::sleep_until(double time) {
  if (time <= now()) return;
  timespec until{};
  until.tv_sec = static_cast<time_t>(std::floor(time));
  until.tv_nsec = static_cast<long>((time - std::floor(time)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

SteadyClock& SteadyClock::instance() {
  static SteadyClock clock;
  return clock;
}

double Deadline::remaining() const {
  return std::max(0.0, at_ - monotonic_seconds());
}

int Deadline::remaining_milliseconds() const {
  return static_cast<int>(std::min(1e9, std::ceil(remaining() * 1e3)));
}

}  // namespace motley
