// The kernel's futex call (shared between processes, so without FUTEX_PRIVATE_FLAG) under the shared counter.
#include "motley/collective/shared_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "motley/base/clock.h"

namespace motley::collective {
namespace {

constexpr double kSpinSeconds = 50e-6;
constexpr long kSleepNanoseconds = 20'000'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// The waker counts and then looks for sleepers; the sleeper registers and then looks at the count (inside the futex
// call once more). Both orders are sequentially consistent, so at least one of them sees the other.
bool SharedCounter::add(std::uint32_t target) {
  const bool completed = value.fetch_add(1, std::memory_order_seq_cst) + 1 == target;
  if (completed && sleepers.load(std::memory_order_seq_cst) > 0) {
    syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  return completed;
}

void sleep_until_changed(SharedCounter& counter, std::uint32_t target) {
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = counter.value.load(std::memory_order_seq_cst);
  if (static_cast<std::int32_t>(seen - target) < 0) {
    const timespec limit = {0, kSleepNanoseconds};
    syscall(SYS_futex, &counter.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

bool spin_until_reached(const SharedCounter& counter, std::uint32_t target) {
  const double end = monotonic_seconds() + kSpinSeconds;
  do {
    for (int i = 0; i < 32; ++i) {
      if (counter.reached(target)) return true;
      relax();
    }
  } while (monotonic_seconds() < end);
  return false;
}

}  // namespace motley::collective
