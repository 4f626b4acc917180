// Which end of which worker a launch reports. The workers are shells.
#include "motley/train/launch/launcher.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/train/launch/launch_job.h"
#include "motley/train/records/metrics.h"
#include "motley/train/records/worker_count.h"

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

  Status launch(const std::string& script, std::optional<Deadline> deadline = std::nullopt, int min_workers = 0,
                int replacements = 0) const {
    LaunchOptions options;
    options.program.command = {"/bin/bash"};
    options.worker_arguments = {"-c", script};
    options.workers = 2;
    options.quiet = true;
    options.deadline = deadline;
    options.min_workers = min_workers;
    options.replacements = replacements;
    return launch_workers(options, *run_);
  }

  std::optional<RunDirectory> run_;
};

TEST_F(LauncherTest, AllThatEndWell) {
  const Status status = launch("echo I am $MOTLEY_RANK of $MOTLEY_SIZE");
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(read_file(run_->log_file(1)).value_or(""), "I am 1 of 2\n");
}

TEST_F(LauncherTest, WhoStartedItMayIgnoreTheEndOfChildren) {
  struct sigaction ignore{}, former, after;
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGCHLD, &ignore, &former);
  const Status status = launch("exit $MOTLEY_RANK", Deadline::after(30));
  ::sigaction(SIGCHLD, &former, &after);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("ended with status 1"));
  EXPECT_EQ(after.sa_handler, SIG_IGN) << "it is left as it was";
}

TEST_F(LauncherTest, WorkersAreForksWhereTheyMayBe) {
  LaunchOptions options;
  options.program.command = {"/bin/echo"};
  options.program.run = [](int count, const char* const* words) {
    std::printf("%d words for rank %s\n", count, std::getenv("MOTLEY_RANK"));
    return std::string(words[1]) == "hello" ? 0 : 1;
  };
  options.worker_arguments = {"hello"};
  options.workers = 2;
  options.quiet = true;
  Status status = launch_workers(options, *run_);
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(read_file(run_->log_file(1)).value_or(""), "hello\n") << "it must not fork where nobody says that it may";

  if (!can_fork()) GTEST_SKIP() << "this process has several threads";
  options.may_fork = true;
  status = launch_workers(options, *run_);
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(read_file(run_->log_file(1)).value_or(""), "hello\n2 words for rank 1\n");
  options.worker_arguments = {"go"};
  status = launch_workers(options, *run_);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("ended with status 1"));
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

// Of an elastic run others kill whom they lose; if nobody has an error about itself, that one is the cause.
TEST_F(LauncherTest, TheErrorThatAWorkerOfAnElasticRunHasAboutItself) {
  constexpr const char* kScript =
      "if [ $MOTLEY_RANK = 1 ]; then kill -KILL $$; fi; "
      "printf '\\002{{\"code\": {}, \"message\": \"the end\", \"rank\": {}}}\\n'; exit 1";
  const Status own = launch(fmt::format(kScript, static_cast<int>(ErrorCode::kInvalidInput), 0), std::nullopt, 1);
  ASSERT_FALSE(own);
  EXPECT_EQ(own.error().message, "rank 0: the end");
  const Status too_few = launch(fmt::format(kScript, static_cast<int>(ErrorCode::kPeerLost), 0), std::nullopt, 1);
  ASSERT_FALSE(too_few);
  EXPECT_THAT(too_few.error().message, HasSubstr("rank 0: the end; there is no checkpoint yet: start again"));
  const Status of_another =
      launch(fmt::format(kScript, static_cast<int>(ErrorCode::kInvalidInput), 1), std::nullopt, 1);
  ASSERT_FALSE(of_another);
  EXPECT_THAT(of_another.error().message, HasSubstr("rank 1 (process"));
}

// Who comes too late for it has not done what there was to do.
TEST_F(LauncherTest, TheErrorOfAWorkerThatIsReplacedTooLate) {
  const Status status = launch(
      "if [ \"$MOTLEY_NEWCOMER\" = 1 ]; then printf '\\002{\"code\": 0, \"message\": \"too late\", \"rank\": -1}\\n'; "
      "exit 0; fi; "
      "if [ $MOTLEY_RANK = 0 ]; then printf '\\002{\"code\": 0, \"message\": \"the end\", \"rank\": 0}\\n'; fi; "
      "kill -KILL $$",
      std::nullopt, 1, 2);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "rank 0: the end");
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

// Rank 0 asks, and says how many workers there are, as they would. The first one that is started as rank 2 ends at
// once, the second one stays.
TEST_F(LauncherTest, StartsAndSendsAwayWorkersAsItIsAsked) {
  const std::string folder = run_->folder().string();
  ASSERT_TRUE(write_file(folder + "/workers", "2 of another start\n"));
  LaunchOptions options;
  options.program.command = {"/bin/bash"};
  options.worker_arguments = {"-c", fmt::format(R"(
cd {}
ask() {{ echo "$1" > request; mv request workers; }}
wait_for() {{ until [ -e $2 ] && grep -qF "$1" $2; do sleep 0.02; done; }}
leave() {{ echo $MOTLEY_RANK >> left; printf '\002{{"code": {}, "message": "left", "rank": '$MOTLEY_RANK'}}\n'; exit 143; }}
echo "$MOTLEY_RANK of $MOTLEY_SIZE newcomer: $MOTLEY_NEWCOMER" >> begun
if [ $MOTLEY_RANK = 2 ] && ! [ -e again ]; then touch again; exit 5; fi
if [ $MOTLEY_RANK != 0 ]; then
  trap leave TERM
  echo $MOTLEY_RANK >> ready
  while true; do sleep 0.02; done
fi
wait_for 1 ready
printf '\0032\n'
for request in many '4 too many' '0' ''; do
  ask "$request"
  wait_for "workers: '$request' is asked for; accepted: 1 to 3" workers.json
done
ask '3 first'
wait_for '2 of 3 workers are there, as others have ended' workers.json
ask '3 second'
wait_for 2 ready
printf '\0033\n'
wait_for '"asked":"3 second","refused":""' workers.json
cp workers.json grown
ask '1'
wait_for 1 left
wait_for 2 left
printf '\0031\n'
wait_for '"asked":"1"' workers.json
cp workers.json shrunk
)",
                                                folder, static_cast<int>(ErrorCode::kLeft))};
  options.workers = 2;
  options.min_workers = 1;
  options.max_workers = 3;
  options.replacements = 5;
  options.count_folder = folder;
  options.quiet = true;
  options.deadline = Deadline::after(60);
  const Status status = launch_workers(options, *run_);
  EXPECT_TRUE(status) << status.error().message;
  const auto count = [&](const char* name) {
    return parse_json<WorkerCount>(read_file(run_->folder() / name).value_or(""), name).value_or(WorkerCount());
  };
  EXPECT_EQ(count("grown").workers, 3);
  EXPECT_EQ(count("shrunk").workers, 1);
  EXPECT_EQ(count("shrunk").min_workers, 1);
  EXPECT_EQ(count("shrunk").max_workers, 3);
  EXPECT_EQ(count("shrunk").refused, "");
  EXPECT_GT(count("shrunk").since, count("grown").since);
  EXPECT_FALSE(std::filesystem::exists(run_->folder() / "workers.json")) << "nobody is there to be asked";
  const std::string begun = read_file(run_->folder() / "begun").value_or("");
  EXPECT_THAT(begun, HasSubstr("0 of 3 newcomer: \n"));
  EXPECT_EQ(std::ranges::count(begun, '\n'), 4) << begun;
  EXPECT_THAT(begun, ::testing::EndsWith("2 of 3 newcomer: 1\n2 of 3 newcomer: 1\n"));
}

TEST_F(LauncherTest, AJobThatIsNotElasticSaysSo) {
  const std::string folder = run_->folder().string();
  LaunchOptions options;
  options.program.command = {"/bin/bash"};
  options.worker_arguments = {"-c", fmt::format("cd {}; printf '\\0031\\n'; echo 2 > request; mv request workers; "
                                                "until grep -q 'not elastic' workers.json; do sleep 0.02; done",
                                                folder)};
  options.count_folder = folder;
  options.quiet = true;
  options.deadline = Deadline::after(60);
  const Status status = launch_workers(options, *run_);
  EXPECT_TRUE(status) << status.error().message;
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
    const Status status = launch_workers({.program = {.command = {"/nowhere/motley"}, .folder = {}, .run = {}},
                                          .server_arguments = server_arguments,
                                          .quiet = true},
                                         *run_);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("'/nowhere/motley'"));
    EXPECT_EQ(blocked(), signals);
    EXPECT_EQ(open_descriptors(), descriptors);
  }
}

// The workers need longer for it than they have for a checkpoint alone.
TEST_F(LauncherTest, AStopWaitsForAStepAsLongAsTheRunsOthers) {
  StepMetrics line;
  line.step = 1;
  line.accuracy = 0.5;
  line.step_seconds = 60;
  ASSERT_TRUE(write_file(run_->metrics_file(), to_json(line) + "\n"));
  LaunchOptions options;
  options.program.command = {"/bin/bash"};
  options.worker_arguments = {"-c", fmt::format(R"(
stop() {{ sleep 1; printf '\002{{"code": {}, "message": "stopped", "rank": -1}}\n'; exit 130; }}
trap stop INT
kill -INT $PPID
while true; do sleep 0.02; done
)",
                                                static_cast<int>(ErrorCode::kInterrupted))};
  options.quiet = true;
  options.stop_seconds = 0.1;
  options.deadline = Deadline::after(60);
  const auto former = ::signal(SIGINT, SIG_DFL);  // a shell takes none that was ignored when it began
  const Status status = launch_workers(options, *run_);
  ::signal(SIGINT, former);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInterrupted);
  EXPECT_THAT(status.error().message, HasSubstr("a checkpoint was written"));
}

// Whatever is waited for in its last step.
TEST(StopSeconds, AreMoreThanAWorkerMayBeWaitedFor) {
  Job job;
  for (const double step : {1.0, 1000.0}) {
    job.deadline.step = step;
    EXPECT_GE(stop_seconds(job), step + LaunchRules().stop_seconds);
  }
}

TEST_F(LauncherTest, KillsWhatHasNotEndedByTheDeadline) {
  const Status status = launch("exec tail -f /dev/null", Deadline::after(0.2));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimeout);
}

}  // namespace
}  // namespace motley::train
