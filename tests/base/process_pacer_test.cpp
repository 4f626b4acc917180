#include "motley/base/os/process_pacer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "motley/base/clock.h"
#include "motley/base/os/process.h"
#include "tests/temporary_folder.h"

namespace motley {
namespace {

TEST(CpuAllowance, GrowsWithTimeAtItsRate) {
  CpuAllowance allowance(0.25, 100, 7);  // at 100 s, having used 7 s
  EXPECT_TRUE(allowance.may_run(100.008, 7.001));
  EXPECT_FALSE(allowance.may_run(100.010, 7.0031));  // 0.0025 s were allowed
  EXPECT_FALSE(allowance.may_run(100.012, 7.0031));
  EXPECT_TRUE(allowance.may_run(100.013, 7.0031));
}

TEST(CpuAllowance, WhatWasNotUsedIsNotSavedUp) {
  CpuAllowance allowance(0.5, 0, 0);
  EXPECT_TRUE(allowance.may_run(60, 0.001));    // a minute with next to nothing to do
  EXPECT_FALSE(allowance.may_run(60, 0.0031));  // gives 2 ms, not 30 s
}

TEST(CpuAllowance, WhatWasUsedTooMuchIsPaidBack) {
  CpuAllowance allowance(0.5, 0, 0);
  EXPECT_FALSE(allowance.may_run(0.001, 0.010));
  EXPECT_FALSE(allowance.may_run(0.019, 0.010));
  EXPECT_TRUE(allowance.may_run(0.021, 0.010));
}

// Upper bounds only: a busy machine gives less.
TEST(ProcessPacer, HoldsAProcessToItsRate) {
  const auto busy = spawn({.words = {"sh", "-c", "while :; do :; done"}});
  ASSERT_TRUE(busy) << busy.error().message;
  const double began = monotonic_seconds();
  auto pacer = ProcessPacer::start({{*busy, 0.1}});
  ASSERT_TRUE(pacer) << pacer.error().message;
  clockid_t clock = 0;
  ASSERT_EQ(clock_getcpuclockid(*busy, &clock), 0);
  const auto used = [clock] {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double first = used();
  double elapsed = 0;
  while (used() < first + 0.2 && elapsed < 60) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.005);
    elapsed = monotonic_seconds() - began;
  }
  EXPECT_LT(elapsed, 60) << "it hardly ran";
  EXPECT_GE(elapsed, 1) << "0.2 s of CPU time at a tenth of a processor take two seconds";
  pacer->stop();
  ::kill(*busy, SIGKILL);
  int status = 0;
  ::waitpid(*busy, &status, 0);
}

TEST(ProcessPacer, LetsAProcessGoOnWhenItStops) {
  const TemporaryFolder folder;
  const std::string go = (folder.path / "go").string();
  const auto child = spawn({.words = {"sh", "-c", "until [ -e '" + go + "' ]; do :; done"}});
  ASSERT_TRUE(child) << child.error().message;
  {
    auto pacer = ProcessPacer::start({{*child, 1e-6}});
    ASSERT_TRUE(pacer) << pacer.error().message;
    siginfo_t stopped{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(*child), &stopped, WSTOPPED | WNOWAIT), 0);
  }
  std::ofstream(go) << "go";
  int status = 0;
  ASSERT_EQ(::waitpid(*child, &status, 0), *child);
  EXPECT_EQ(exit_code(status), 0);
}

TEST(ProcessPacer, RefusesWhatIsNotThere) {
  EXPECT_EQ(ProcessPacer::start({{::getpid(), 0}}).error().code, ErrorCode::kInvalidInput);
  const auto ended = spawn({.words = {"true"}});
  int status = 0;
  ::waitpid(*ended, &status, 0);
  EXPECT_EQ(ProcessPacer::start({{*ended, 1}}).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace motley
