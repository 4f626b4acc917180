// A counter in memory that several processes map, and the wait for it to reach a value: spinning for at most 50
// microseconds where every rank has a core, then asleep in the kernel until whoever completes the count wakes it.
#pragma once

#include <atomic>
#include <cstdint>

#include "motley/base/result.h"

namespace motley::collective {

// Zero bytes are a valid counter at zero, so that it needs no construction in shared memory. It grows only, and wraps
// around; at most 2^31 counts may lie between a value and a target compared with it.
struct alignas(64) SharedCounter {
  std::atomic<std::uint32_t> value;
  std::atomic<std::uint32_t> sleepers;

  bool reached(std::uint32_t target) const {
    return static_cast<std::int32_t>(value.load(std::memory_order_acquire) - target) >= 0;
  }
  // Counts one, releasing everything written before, and wakes all sleepers if that makes it `target`, the value that
  // the waits under way are for. Returns whether it did.
  bool add(std::uint32_t target);
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(SharedCounter) == 64);

// Asleep until the counter changes or about 20 ms have passed; returns at once if `target` is reached.
void sleep_until_changed(SharedCounter& counter, std::uint32_t target);
// Looks at the counter for at most 50 microseconds.
bool spin_until_reached(const SharedCounter& counter, std::uint32_t target);

// Waits until the counter has reached `target`. `interrupted()` is asked every 20 ms; its error ends the wait.
template <class Interrupted>
Status wait_until_reached(SharedCounter& counter, std::uint32_t target, bool spin, Interrupted interrupted) {
  if (counter.reached(target) || (spin && spin_until_reached(counter, target))) return {};
  while (!counter.reached(target)) {
    MOTLEY_TRY(interrupted());
    sleep_until_changed(counter, target);
  }
  return {};
}

}  // namespace motley::collective
