// A fault that is asked for happens to the first process that comes there, and to no other.
#include "motley/base/os/injected_fault.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley {
namespace {

// How a process of this rank ends that passes three points; 0: as it wanted to.
int run_process(const std::filesystem::path& folder, int rank) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("MOTLEY_FAULTS", folder.c_str(), 1);
    for (const char* point : {"forward", "between buckets", "optimizer"}) inject_fault(rank, point);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  if (!WIFSTOPPED(status)) return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return WSTOPSIG(status);
}

TEST(InjectedFault, HappensOnceToTheRankAtThePoint) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder.path / "2.between-buckets", "kill\n"));
  EXPECT_EQ(run_process(folder.path, 1), 0);
  EXPECT_EQ(run_process(folder.path, 2), SIGKILL);
  EXPECT_EQ(run_process(folder.path, 2), 0);
  ASSERT_TRUE(write_file(folder.path / "1.optimizer", "stop"));
  EXPECT_EQ(run_process(folder.path, 1), SIGSTOP);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

TEST(InjectedFault, HappensToTheProcessThatIsNamed) {
  const TemporaryFolder folder;
  const pid_t other = ::fork();
  if (other == 0) {
    for (;;) ::pause();
  }
  ASSERT_TRUE(write_file(folder.path / "0.forward", "kill " + std::to_string(other)));
  EXPECT_EQ(run_process(folder.path, 0), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path));
}

TEST(InjectedFault, LetsAProcessGoOnThatWasStopped) {
  const TemporaryFolder folder;
  const pid_t other = ::fork();
  if (other == 0) {
    ::raise(SIGSTOP);
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, WUNTRACED), other);
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_TRUE(write_file(folder.path / "0.forward", "continue " + std::to_string(other)));
  EXPECT_EQ(run_process(folder.path, 0), 0);
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

TEST(InjectedFault, AFileThatSaysNothingKnownIsLeft) {
  const TemporaryFolder folder;
  for (const char* text : {"explode", "kill everybody", "kill -1"}) {
    ASSERT_TRUE(write_file(folder.path / "0.forward", text));
    EXPECT_EQ(run_process(folder.path, 0), 0);
    EXPECT_FALSE(std::filesystem::is_empty(folder.path));
  }
}

}  // namespace
}  // namespace motley
