// Processes of this machine: begun once, found again by another executor, asked to end, killed.
#include "motley/scheduling/executors/executors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "motley/base/clock.h"
#include "motley/base/os/file.h"
#include "motley/scheduling/executors/attempt_folder.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

using State = AttemptStatus::State;

class LocalExecutorTest : public ::testing::Test {
 protected:
  Attempt attempt(const std::string& script) {
    return {
        1, "job", 1, {"bash", "-c", script}, folder_.path.string(), folder_.path / "attempt", {{"n0", 2}, {"n1", 1}}};
  }
  AttemptStatus wait_for(Executor& executor, const Attempt& attempt, State state) {
    AttemptStatus status;
    for (const Deadline deadline = Deadline::after(20); !deadline.passed();) {
      status = *executor.look(attempt);
      if (status.state == state) return status;
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
    ADD_FAILURE() << "the attempt does not come to state " << static_cast<int>(state);
    return status;
  }
  std::string text(const std::string& name) { return read_file(folder_.path / name).value_or(""); }

  TemporaryFolder folder_;
};

TEST_F(LocalExecutorTest, TellsTheCommandWhereItIsAndHowItEnded) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo $MOTLEY_JOB $MOTLEY_ATTEMPT $MOTLEY_WORKERS $MOTLEY_NODES; pwd; exit 7");
  EXPECT_EQ(executor->look(one)->state, State::kUnknown);
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 7);
  EXPECT_EQ(text("attempt/output"), "job 1 3 n0:2,n1:1\n" + folder_.path.string() + "\n");
}

TEST_F(LocalExecutorTest, BeginsOnceWhoeverStartsIt) {
  const std::unique_ptr<Executor> first = *make_local_executor();
  const std::unique_ptr<Executor> second = *make_local_executor();
  const Attempt one = attempt("echo begun >> " + (folder_.path / "begins").string() + "; sleep 0.2");
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(first->start(one));
    ASSERT_TRUE(second->start(one));
  }
  EXPECT_EQ(wait_for(*second, one, State::kEnded).exit_code, 0);
  ASSERT_TRUE(first->start(one));
  SteadyClock::instance().sleep_until(monotonic_seconds() + 0.3);
  EXPECT_EQ(text("begins"), "begun\n");
}

TEST_F(LocalExecutorTest, AnotherExecutorAsksItToEnd) {
  const std::unique_ptr<Executor> first = *make_local_executor();
  const Attempt one = attempt("trap 'echo saved; exit 3' TERM; echo ready; while true; do sleep 0.02; done");
  ASSERT_TRUE(first->start(one));
  for (const Deadline deadline = Deadline::after(20); text("attempt/output") != "ready\n" && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
  const std::unique_ptr<Executor> second = *make_local_executor();
  EXPECT_EQ(second->look(one)->state, State::kRunning);
  ASSERT_TRUE(second->ask_to_end(one));
  EXPECT_EQ(wait_for(*second, one, State::kEnded).exit_code, 3);
  EXPECT_THAT(text("attempt/output"), ::testing::HasSubstr("saved"));
}

TEST_F(LocalExecutorTest, WhatIsKilledIsLost) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("trap '' TERM; sleep 100");
  ASSERT_TRUE(executor->start(one));
  wait_for(*executor, one, State::kRunning);
  for (const Deadline deadline = Deadline::after(20); text("attempt/begun").empty() && !deadline.passed();) {
    SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
  }
  ASSERT_TRUE(executor->ask_to_end(one));
  EXPECT_EQ(executor->look(one)->state, State::kRunning);
  ASSERT_TRUE(executor->kill(one));
  wait_for(*executor, one, State::kLost);
}

TEST_F(LocalExecutorTest, WhatIsToEndBeforeItBeginsNeverBegins) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  const Attempt one = attempt("echo begun > " + (folder_.path / "begins").string());
  ASSERT_TRUE(executor->ask_to_end(one));
  EXPECT_EQ(executor->look(one)->state, State::kLost);
  ASSERT_TRUE(executor->start(one));
  SteadyClock::instance().sleep_until(monotonic_seconds() + 0.3);
  EXPECT_EQ(executor->look(one)->state, State::kLost);
  EXPECT_EQ(text("begins"), "");
}

TEST_F(LocalExecutorTest, ACommandThatIsNotThereEndsAsInAShell) {
  const std::unique_ptr<Executor> executor = *make_local_executor();
  Attempt one = attempt("");
  one.command = {"no-such-program"};
  ASSERT_TRUE(executor->start(one));
  EXPECT_EQ(wait_for(*executor, one, State::kEnded).exit_code, 127);
}

TEST_F(LocalExecutorTest, TheWrapperIsLookedForBesideTheProgram) {
  const auto missing = find_wrapper(folder_.path);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(missing.error().message, ::testing::HasSubstr((folder_.path / "motley-run-attempt").string()));
  EXPECT_TRUE(find_wrapper());
}

}  // namespace
}  // namespace motley::scheduling
