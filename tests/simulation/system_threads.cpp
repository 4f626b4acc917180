// Threads, locks, clocks and processes as the system gives them: these functions take the place of the system's
// library's in this program, and are the simulated cluster's while one of its threads runs.
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <limits>

#include "tests/simulation/cluster.h"

namespace motley::simulation {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kClockSeconds = 1e-7;  // that it takes to look at the clock
constexpr double kWallZero = 1.7e9;

double read_clock(clockid_t id) {
  simulator().pass(kClockSeconds);
  const double now = simulator().now();
  switch (id) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
      return kWallZero + now;
    case CLOCK_PROCESS_CPUTIME_ID:
    case CLOCK_THREAD_CPUTIME_ID:
      return 1e-6 * static_cast<double>(Cluster::caller().operations.number);
    default:
      return Cluster::clock_zero(Cluster::caller().host) + now;
  }
}

double to_seconds(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

timespec to_timespec(double seconds) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(std::floor(seconds));
  time.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  return time;
}

// Of the simulation, when that clock shows it.
double moment(clockid_t id, const timespec& time) {
  const double zero = id == CLOCK_REALTIME ? kWallZero : Cluster::clock_zero(Cluster::caller().host);
  return to_seconds(time) - zero + 2e-9;  // past what rounding takes off
}

void sleep_until(double time) {
  simulator().operation();
  simulator().begin_wait("sleep");
  simulator().wait(time);
}

// A mutex is unlocked where all its bytes are zero, as after PTHREAD_MUTEX_INITIALIZER.
int own_number() {
  return static_cast<int>(Simulator::running()->number) + 1;
}

bool try_to_lock(pthread_mutex_t& mutex) {
  auto& data = mutex.__data;
  if (data.__lock == 0) {
    data.__lock = 1;
    data.__owner = own_number();
    return true;
  }
  if (data.__kind != PTHREAD_MUTEX_RECURSIVE_NP || data.__owner != own_number()) return false;
  ++data.__count;
  return true;
}

int lock(pthread_mutex_t& mutex, double until = kNever) {
  while (!try_to_lock(mutex)) {
    if (simulator().now() >= until) return ETIMEDOUT;
    simulator().queue_at(&mutex).add(simulator().begin_wait("lock"));
    simulator().wait(until);
  }
  return 0;
}

void unlock(pthread_mutex_t& mutex) {
  auto& data = mutex.__data;
  if (data.__count > 0) {
    --data.__count;
    return;
  }
  data.__lock = 0;
  data.__owner = 0;
  simulator().queue_at(&mutex).wake_one();
}

int wait_for_condition(pthread_cond_t& condition, pthread_mutex_t& mutex, double until) {
  Thread& thread = simulator().begin_wait("a condition");
  simulator().queue_at(&condition).add(thread);
  const int depth = static_cast<int>(std::exchange(mutex.__data.__count, 0U));
  unlock(mutex);
  const bool woken = simulator().wait(until);
  lock(mutex);
  mutex.__data.__count = static_cast<unsigned>(depth);
  return woken ? 0 : ETIMEDOUT;
}

long wait_at(const int* address, int expected, double until) {
  simulator().operation();
  if (__atomic_load_n(address, __ATOMIC_SEQ_CST) != expected) {
    errno = EAGAIN;
    return -1;
  }
  simulator().queue_at(address).add(simulator().begin_wait("a futex"));
  if (simulator().wait(until)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

long call_futex(int* address, int operation, int value, const timespec* time) {
  const bool uses_wall = (operation & FUTEX_CLOCK_REALTIME) != 0;
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAIT:
      return wait_at(address, value, time == nullptr ? kNever : simulator().now() + to_seconds(*time));
    case FUTEX_WAIT_BITSET:
      return wait_at(address, value,
                     time == nullptr ? kNever : moment(uses_wall ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time));
    case FUTEX_WAKE:
    case FUTEX_WAKE_BITSET:
      for (int i = 0; i < std::min(value, 64); ++i) simulator().queue_at(address).wake_one();
      return 0;
    default:
      std::abort();
  }
}

// Readable once its process has ended.
class ProcessFile final : public File {
 public:
  explicit ProcessFile(Process& process) : process(process) {}
  short ready() const override { return process.has_ended ? POLLIN : 0; }
  Process& process;
};

long open_process(int id) {
  Process* const process = simulator().find(id);
  if (process == nullptr || process->has_ended || process->host != Cluster::caller().host) {
    errno = ESRCH;
    return -1;
  }
  const auto file = std::make_shared<ProcessFile>(*process);
  process->files.push_back(file);
  return simulator().open(file);
}

long send_signal(Process* process, int signal) {
  simulator().operation();
  if (process == nullptr || process->has_ended) {
    errno = ESRCH;
    return -1;
  }
  if (signal == SIGKILL) simulator().kill(*process);
  if (signal == SIGSTOP) simulator().stop(*process);
  if (signal == SIGCONT) simulator().go_on(*process);
  return 0;
}

}  // namespace
}  // namespace motley::simulation

using namespace motley::simulation;  // NOLINT: what follows has the system's names, in no namespace

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  MOTLEY_REAL(pthread_create, thread, attributes, body, argument);
  *thread = simulator().start_thread(Cluster::caller(), [body, argument] { body(argument); }).number + 1;
  simulator().operation();
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  MOTLEY_REAL(pthread_join, thread, result);
  simulator().operation();
  Thread* const joined = simulator().find_thread(thread - 1);
  while (!joined->has_ended) {
    simulator().queue_at(joined).add(simulator().begin_wait("join"));
    simulator().wait(kNever);
  }
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  MOTLEY_REAL(pthread_detach, thread);
  return 0;
}

pthread_t pthread_self() noexcept {
  MOTLEY_REAL(pthread_self);
  return Simulator::running()->number + 1;
}

int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  MOTLEY_REAL(pthread_sigmask, how, set, old);
  if (old != nullptr) sigemptyset(old);
  return 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  MOTLEY_REAL(pthread_mutex_lock, mutex);
  simulator().operation();
  return lock(*mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  MOTLEY_REAL(pthread_mutex_trylock, mutex);
  return try_to_lock(*mutex) ? 0 : EBUSY;
}

int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* time) noexcept {
  MOTLEY_REAL(pthread_mutex_clocklock, mutex, clock, time);
  simulator().operation();
  return lock(*mutex, moment(clock, *time));
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  MOTLEY_REAL(pthread_mutex_unlock, mutex);
  unlock(*mutex);
  return 0;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  MOTLEY_REAL(pthread_cond_wait, condition, mutex);
  return wait_for_condition(*condition, *mutex, kNever);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* time) {
  MOTLEY_REAL(pthread_cond_timedwait, condition, mutex, time);
  return wait_for_condition(*condition, *mutex, moment(CLOCK_REALTIME, *time));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* time) {
  MOTLEY_REAL(pthread_cond_clockwait, condition, mutex, clock, time);
  return wait_for_condition(*condition, *mutex, moment(clock, *time));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  MOTLEY_REAL(pthread_cond_signal, condition);
  simulator().queue_at(condition).wake_one();
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  MOTLEY_REAL(pthread_cond_broadcast, condition);
  simulator().queue_at(condition).wake_all();
  return 0;
}

int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  MOTLEY_REAL(pthread_cond_destroy, condition);
  return 0;
}

int sched_yield() noexcept {
  MOTLEY_REAL(sched_yield);
  simulator().operation();
  simulator().yield();
  return 0;
}

int sched_getaffinity(pid_t process, std::size_t bytes, cpu_set_t* cores) noexcept {
  MOTLEY_REAL(sched_getaffinity, process, bytes, cores);
  CPU_ZERO_S(bytes, cores);
  CPU_SET_S(0, bytes, cores);
  return 0;
}

int clock_gettime(clockid_t id, timespec* time) noexcept {
  MOTLEY_REAL(clock_gettime, id, time);
  *time = to_timespec(read_clock(id));
  return 0;
}

int gettimeofday(timeval* time, void* zone) noexcept {
  MOTLEY_REAL(gettimeofday, time, zone);
  const timespec now = to_timespec(read_clock(CLOCK_REALTIME));
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

int clock_nanosleep(clockid_t id, int flags, const timespec* time, timespec* left) {
  MOTLEY_REAL(clock_nanosleep, id, flags, time, left);
  sleep_until((flags & TIMER_ABSTIME) != 0 ? moment(id, *time) : simulator().now() + to_seconds(*time));
  return 0;
}

int nanosleep(const timespec* time, timespec* left) {
  MOTLEY_REAL(nanosleep, time, left);
  sleep_until(simulator().now() + to_seconds(*time));
  return 0;
}

int getrusage(__rusage_who_t who, rusage* usage) noexcept {
  MOTLEY_REAL(getrusage, who, usage);
  *usage = {};
  usage->ru_maxrss = 1000;
  return 0;
}

pid_t getpid() noexcept {
  MOTLEY_REAL(getpid);
  return Cluster::caller().id;
}

int kill(pid_t process, int signal) noexcept {
  MOTLEY_REAL(kill, process, signal);
  return static_cast<int>(send_signal(simulator().find(process), signal));
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto [first, second, third, fourth, fifth, sixth] = arguments;
  if (Cluster::is_calling()) {
    switch (number) {
      case SYS_futex:
        return call_futex(reinterpret_cast<int*>(first), static_cast<int>(second), static_cast<int>(third),
                          reinterpret_cast<const timespec*>(fourth));
      case SYS_pidfd_open:
        return open_process(static_cast<int>(first));
      case SYS_pidfd_send_signal: {
        const auto file = std::dynamic_pointer_cast<ProcessFile>(simulator().file(static_cast<int>(first)));
        return send_signal(file ? &file->process : nullptr, static_cast<int>(second));
      }
      case SYS_gettid:
        return own_number();
      default:
        break;
    }
  }
  static auto* const real = find_real(&::syscall, "syscall");
  return real(number, first, second, third, fourth, fifth, sixth);
}

void abort() noexcept {
  if (!Cluster::is_calling()) find_real(&::abort, "abort")();
  simulator().kill(Cluster::caller(), SIGABRT);
  simulator().operation();
  __builtin_unreachable();
}

// The library's source of nonces and session numbers.
int RAND_bytes(unsigned char* bytes, int count) {
  MOTLEY_REAL(RAND_bytes, bytes, count);
  for (int i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(simulator().random().next());
  return 1;
}

}  // extern "C"
