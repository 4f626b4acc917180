#include "motley/base/os/signals.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/no_threads.h"

namespace motley {
namespace {

void* page = nullptr;
volatile int faults = 0;

// Gives the page back, so that the access that faulted succeeds when it is repeated.
void on_fault(int /*signal*/) {
  faults = faults + 1;
  ::mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

TEST(StartThread, HandlersAreCalledForItsFaults) {
  page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  struct sigaction action = {}, before = {};
  action.sa_handler = on_fault;
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &before), 0);
  start_thread([] { *static_cast<volatile char*>(page) = 1; }).join();
  ::sigaction(SIGSEGV, &before, nullptr);
  ::munmap(page, 4096);
  EXPECT_EQ(faults, 1);
}

TEST(StartThread, TakesNoSignalThatIsMeantForTheProcess) {
  sigset_t blocked;
  start_thread([&] { ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked); }).join();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1, SIGPIPE}) {
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
    EXPECT_EQ(sigismember(&blocked, signal), 0) << signal;
  }
}

TEST(TryStartThread, SaysWhyThereIsNoneAndBlocksNoSignals) {
  sigset_t before, after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  {
    const NoThreads none;
    const auto thread = try_start_thread([] {});
    ASSERT_FALSE(thread);
    EXPECT_EQ(thread.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(thread.error().message, "no thread could be started: Resource temporarily unavailable");
  }
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
  auto thread = try_start_thread([] {});
  ASSERT_TRUE(thread) << thread.error().message;
  thread->join();
}

}  // namespace
}  // namespace motley
