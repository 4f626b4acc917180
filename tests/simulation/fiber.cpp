#include "tests/simulation/fiber.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

// Saves what a call must preserve on the stack, and goes on with another stack: %rdi is where the old stack's pointer
// goes, %rsi the new one's.
extern "C" void motley_simulation_switch(void** from, void* to);
asm(R"(
.text
.globl motley_simulation_switch
.type motley_simulation_switch,@function
motley_simulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size motley_simulation_switch,.-motley_simulation_switch
)");

namespace motley::simulation {
namespace {

constexpr std::size_t kStackBytes = 512 << 10;
constexpr std::size_t kGuardBytes = 4096;
constexpr std::size_t kSavedRegisters = 6;

Fiber* entering = nullptr;
std::vector<std::byte*> spare_stacks;

std::byte* take_stack() {
  if (!spare_stacks.empty()) {
    std::byte* const stack = spare_stacks.back();
    spare_stacks.pop_back();
    return stack;
  }
  void* memory =
      ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  ::mprotect(memory, kGuardBytes, PROT_NONE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + kStackBytes);
  *--top = 0;  // enter() returns to nobody, and finds the stack aligned as after a call
  *--top = reinterpret_cast<std::uintptr_t>(&Fiber::enter);
  for (std::size_t i = 0; i < kSavedRegisters; ++i) *--top = 0;
  own_pointer_ = top;
}

Fiber::~Fiber() {
  abandon();
}

void Fiber::abandon() {
  if (stack_ != nullptr) spare_stacks.push_back(std::exchange(stack_, nullptr));
  has_ended_ = true;
}

void Fiber::enter() {
  Fiber& own = *entering;
  own.body_();
  own.has_ended_ = true;
  own.suspend();
  std::abort();
}

// What the C++ library and the system's library keep for a thread.
void Fiber::swap_thread_state() {
  struct Exceptions {  // as the C++ ABI lays them out
    void* caught;
    unsigned uncaught;
  };
  auto* exceptions = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
  std::swap(exceptions->caught, state_.caught_exceptions);
  std::swap(exceptions->uncaught, state_.uncaught_exceptions);
  std::swap(errno, state_.error_number);
}

void Fiber::resume() {
  swap_thread_state();
  entering = this;
  motley_simulation_switch(&resumer_pointer_, own_pointer_);
  swap_thread_state();
}

void Fiber::suspend() {
  motley_simulation_switch(&own_pointer_, resumer_pointer_);
}

}  // namespace motley::simulation
