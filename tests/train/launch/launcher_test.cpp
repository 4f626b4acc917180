// Which end of which worker a launch reports. The workers are shells.
#include "motley/train/launch/launcher.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "motley/base/os/file.h"

namespace motley::train {
namespace {

using ::testing::HasSubstr;

class LauncherTest : public ::testing::Test {
 protected:
  LauncherTest() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-launch-XXXXXX").string();
    run_.emplace(::mkdtemp(name.data()));
    EXPECT_TRUE(make_folders(run_->folder() / "logs"));
  }
  ~LauncherTest() override { std::filesystem::remove_all(run_->folder()); }

  Status launch(const std::string& script, std::optional<Deadline> deadline = std::nullopt) const {
    LaunchOptions options;
    options.program = {"/bin/bash"};
    options.worker_arguments = {"-c", script};
    options.workers = 2;
    options.quiet = true;
    options.deadline = deadline;
    return launch_workers(options, *run_);
  }

  std::optional<RunDirectory> run_;
};

TEST_F(LauncherTest, AllThatEndWell) {
  const Status status = launch("echo I am $MOTLEY_RANK of $MOTLEY_SIZE");
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(read_file(run_->log_file(1)).value_or(""), "I am 1 of 2\n");
}

TEST_F(LauncherTest, TheRankThatWasKilledBeforeWhatOthersSayOfIt) {
  const Status status = launch(
      "if [ $MOTLEY_RANK = 1 ]; then kill -SEGV $$; fi; "
      "printf '\\002{\"code\": 0, \"message\": \"rank 1 is gone\", \"rank\": 1}\\n'; exit 1");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().rank, 1);
  EXPECT_THAT(status.error().message, HasSubstr("was killed by signal 11"));
  EXPECT_THAT(status.error().message, HasSubstr("there is no checkpoint yet"));
}

TEST_F(LauncherTest, TheErrorThatARankHasAboutItself) {
  const Status status = launch(
      "if [ $MOTLEY_RANK = 0 ]; then printf '\\002{\"code\": 0, \"message\": \"lost rank 1\", \"rank\": 1}\\n'; exit "
      "1; fi; "
      "printf '\\002{\"code\": 0, \"message\": \"no memory\", \"rank\": 1}\\n'; exit 1");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "rank 1: no memory");
}

TEST_F(LauncherTest, ARankThatLeftNoError) {
  const Status status = launch("exit 7");
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("ended with status 7 and left no error"));
}

TEST_F(LauncherTest, KillsARankThatIsStoppedOnceAnotherHasNamedIt) {
  const Status status = launch(
      "if [ $MOTLEY_RANK = 1 ]; then kill -STOP $$; fi; "
      "printf '\\002{\"code\": 0, \"message\": \"rank 1 has been silent\", \"rank\": 1}\\n'; exit 1");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "rank 0: rank 1 has been silent");
}

TEST_F(LauncherTest, AStartThatFailsLeavesSignalsAndDescriptorsAsTheyWere) {
  const auto blocked = [] {
    sigset_t mask;
    ::sigprocmask(SIG_BLOCK, nullptr, &mask);
    std::vector<int> signals;
    for (int signal = 1; signal < NSIG; ++signal) {
      if (sigismember(&mask, signal) == 1) signals.push_back(signal);
    }
    return signals;
  };
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto signals = blocked();
  const auto descriptors = open_descriptors();
  for (const auto& server_arguments : {std::vector<std::string>(), std::vector<std::string>{"server"}}) {
    const Status status =
        launch_workers({.program = {"/nowhere/motley"}, .server_arguments = server_arguments, .quiet = true}, *run_);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("'/nowhere/motley'"));
    EXPECT_EQ(blocked(), signals);
    EXPECT_EQ(open_descriptors(), descriptors);
  }
}

TEST_F(LauncherTest, KillsWhatHasNotEndedByTheDeadline) {
  const Status status = launch("exec tail -f /dev/null", Deadline::after(0.2));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace motley::train
