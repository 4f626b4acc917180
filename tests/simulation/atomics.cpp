// What the compiler calls for each atomic access of the code that is compiled with its instrumentation for the thread
// sanitizer, whose library is not linked: another thread may run before each of them. Plain accesses do nothing more.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tests/simulation/simulator.h"

namespace {

// Ordered by the simulation itself: one thread runs at a time.
constexpr int kOrder = __ATOMIC_SEQ_CST;

void let_others_run() {
  if (motley::simulation::Simulator::running() != nullptr) motley::simulation::Simulator::instance().operation();
}

}  // namespace

#define MOTLEY_ATOMICS(bits)                                                                                          \
  using Value##bits = std::uint##bits##_t;                                                                            \
  Value##bits __tsan_atomic##bits##_load(const volatile Value##bits* at, int) {                                       \
    let_others_run();                                                                                                 \
    return __atomic_load_n(at, kOrder);                                                                               \
  }                                                                                                                   \
  void __tsan_atomic##bits##_store(volatile Value##bits* at, Value##bits value, int) {                                \
    let_others_run();                                                                                                 \
    __atomic_store_n(at, value, kOrder);                                                                              \
  }                                                                                                                   \
  Value##bits __tsan_atomic##bits##_exchange(volatile Value##bits* at, Value##bits value, int) {                      \
    let_others_run();                                                                                                 \
    return __atomic_exchange_n(at, value, kOrder);                                                                    \
  }                                                                                                                   \
  Value##bits __tsan_atomic##bits##_fetch_add(volatile Value##bits* at, Value##bits value, int) {                     \
    let_others_run();                                                                                                 \
    return __atomic_fetch_add(at, value, kOrder);                                                                     \
  }                                                                                                                   \
  Value##bits __tsan_atomic##bits##_fetch_sub(volatile Value##bits* at, Value##bits value, int) {                     \
    let_others_run();                                                                                                 \
    return __atomic_fetch_sub(at, value, kOrder);                                                                     \
  }                                                                                                                   \
  Value##bits __tsan_atomic##bits##_fetch_or(volatile Value##bits* at, Value##bits value, int) {                      \
    let_others_run();                                                                                                 \
    return __atomic_fetch_or(at, value, kOrder);                                                                      \
  }                                                                                                                   \
  Value##bits __tsan_atomic##bits##_fetch_and(volatile Value##bits* at, Value##bits value, int) {                     \
    let_others_run();                                                                                                 \
    return __atomic_fetch_and(at, value, kOrder);                                                                     \
  }                                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Value##bits* at, Value##bits* expected,                  \
                                                    Value##bits value, int, int) {                                    \
    let_others_run();                                                                                                 \
    return __atomic_compare_exchange_n(at, expected, value, false, kOrder, kOrder) ? 1 : 0;                           \
  }                                                                                                                   \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile Value##bits* at, Value##bits* expected, Value##bits value, \
                                                  int, int) {                                                         \
    let_others_run();                                                                                                 \
    return __atomic_compare_exchange_n(at, expected, value, false, kOrder, kOrder) ? 1 : 0;                           \
  }

#define MOTLEY_ACCESSES(bytes)                 \
  void __tsan_read##bytes(void*) {}            \
  void __tsan_write##bytes(void*) {}           \
  void __tsan_unaligned_read##bytes(void*) {}  \
  void __tsan_unaligned_write##bytes(void*) {} \
  void __tsan_volatile_read##bytes(void*) {}   \
  void __tsan_volatile_write##bytes(void*) {}

extern "C" {

MOTLEY_ATOMICS(8)
MOTLEY_ATOMICS(16)
MOTLEY_ATOMICS(32)
MOTLEY_ATOMICS(64)
MOTLEY_ACCESSES(1)
MOTLEY_ACCESSES(2)
MOTLEY_ACCESSES(4)
MOTLEY_ACCESSES(8)
MOTLEY_ACCESSES(16)

void __tsan_init() {}
void __tsan_read_range(void*, std::size_t) {}
void __tsan_write_range(void*, std::size_t) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"
