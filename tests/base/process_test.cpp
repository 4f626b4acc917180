// Programs that end well, badly, too late or not at all.
#include "motley/base/os/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

namespace motley {
namespace {

Result<Output> run(const std::string& script, double seconds = 60) {
  return run_program({.words = {"sh", "-c", script}}, Deadline::after(seconds));
}

TEST(Process, GivesOutputAndExitCode) {
  const auto output = run("echo one; echo two; exit 3");
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_EQ(output->text, "one\ntwo\n");
  EXPECT_EQ(output->exit_code, 3);
  EXPECT_FALSE(output->is_good());
  EXPECT_EQ(run("kill -TERM $$")->exit_code, 128 + SIGTERM);
}

TEST(Process, GivesOutputThatNoPipeHolds) {
  const auto output = run("head -c 1000000 /dev/zero");
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_EQ(output->text.size(), 1000000u);
}

TEST(Process, IsKilledWithItsChildrenAtTheDeadline) {
  const auto output = run("sleep 1000 & wait", 0.2);
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kTimeout);
  EXPECT_THAT(output.error().message, ::testing::HasSubstr("'sh' did not end within 0.2 s"));
}

TEST(Process, ThatIsNotThereIsRefused) {
  const auto output = run_program({.words = {"no-such-program"}}, Deadline::after(60));
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(output.error().message, ::testing::HasSubstr("no-such-program"));
}

TEST(Process, HasTheVariablesThatItIsGivenOnce) {
  ::setenv("MOTLEY_PROCESS_TEST", "ours", 1);
  const auto output = run_program({.words = {"sh", "-c", "echo $MOTLEY_PROCESS_TEST $HOME"},
                                   .environment = environment_with({"MOTLEY_PROCESS_TEST=its", "HOME=/there"})},
                                  Deadline::after(60));
  ASSERT_TRUE(output) << output.error().message;
  EXPECT_EQ(output->text, "its /there\n");
}

TEST(Process, BlocksNoSignalThatItsParentBlocks) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  EXPECT_EQ(run("kill -TERM $$; exit 0")->exit_code, 128 + SIGTERM);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace motley
