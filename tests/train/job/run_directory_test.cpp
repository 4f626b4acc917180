// What is in a run's folder after a start that was to replace the run.
#include "motley/train/job/run_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/os/process.h"
#include "motley/train/records/metrics.h"
#include "tests/temporary_folder.h"

namespace motley::train {
namespace {

using Files = std::map<std::string, std::string>;

void write(const std::filesystem::path& folder, const Files& files) {
  for (const auto& [name, text] : files) ASSERT_TRUE(write_file(folder / name, text));
}

Files read(const std::filesystem::path& folder, const Files& like) {
  Files files;
  for (const auto& [name, text] : like) files[name] = read_file(folder / name).value_or("");
  return files;
}

const Files kOld = {{"job.yaml", "old"}, {"metrics.jsonl", "old"}, {"plan.json", "old"}, {"cluster.yaml", "old"}};

TEST(RunDirectory, AStartThatMadeNoStepLeavesTheRunAsItWas) {
  const TemporaryFolder folder;
  write(folder.path, kOld);
  const RunDirectory run(folder.path);
  {
    const auto lock = run.prepare(false, true);
    ASSERT_TRUE(lock) << lock.error().message;
    EXPECT_FALSE(std::filesystem::exists(run.metrics_file()));
    // Some things are told before the first step.
    write(folder.path, {{"job.yaml", "new"},
                        {"metrics.jsonl", R"({"step":0,"time":0.1,"event":"warning","text":"a large batch"})"
                                          "\n"},
                        {"plan.json", "new"},
                        {"cluster.yaml", "new"},
                        {"profile.json", "new"}});
    ASSERT_TRUE(run.settle_replaced());
  }
  EXPECT_EQ(read(folder.path, kOld), kOld);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "profile.json"));
  EXPECT_FALSE(std::filesystem::exists(folder.path / "replaced"));
}

TEST(RunDirectory, AStartThatIsRefusedTakesNothingAway) {
  const TemporaryFolder folder;
  write(folder.path, kOld);
  EXPECT_FALSE(RunDirectory(folder.path).prepare(false, false));
  EXPECT_EQ(read(folder.path, kOld), kOld);
}

// A job that somebody has written there, and no run.
TEST(RunDirectory, AJobWithoutARunIsNotReplaced) {
  const TemporaryFolder folder;
  const Files mine = {{"job.yaml", "mine"}, {"plan.json", "mine"}};
  write(folder.path, mine);
  for (const bool overwrite : {false, true}) {
    const auto lock = RunDirectory(folder.path).prepare(false, overwrite);
    ASSERT_FALSE(lock);
    EXPECT_EQ(lock.error().code, ErrorCode::kInvalidInput);
    EXPECT_NE(lock.error().message.find("no run that could be replaced"), std::string::npos) << lock.error().message;
  }
  EXPECT_EQ(read(folder.path, mine), mine);
  EXPECT_FALSE(std::filesystem::exists(folder.path / "replaced"));
  EXPECT_FALSE(std::filesystem::exists(folder.path / "logs"));
}

// As where a launcher is killed: its workers do their last step, and whoever goes on waits for that.
TEST(RunDirectory, IsLockedUntilTheLastWorkerOfAKilledLauncherHasEnded) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  write(folder.path, {{"job.yaml", "a job"}});
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor input(ends[0]);
  Descriptor output(ends[1]);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    const auto lock = run.prepare(true, false);
    if (!lock) ::_exit(1);
    hand_down(*lock);
    const std::string script = fmt::format("cd '{}'; read line; echo saved > checkpoint", folder.path.string());
    ::_exit(spawn({.words = {"/bin/sh", "-c", script}, .input = input.get()}) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(launcher, &status, 0), launcher);
  ASSERT_EQ(status, 0);
  {
    const Descriptor other(::open((folder.path / "lock").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(other.valid());
    EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0) << "the worker does not hold it";
  }
  output.close();  // the worker reads to the end
  const auto lock = run.prepare(true, false);
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_EQ(read_file(folder.path / "checkpoint").value_or(""), "saved\n");
}

TEST(RunDirectory, ALivingProcessThatHoldsItIsNotWaitedFor) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  const auto lock = run.prepare(false, false);
  ASSERT_TRUE(lock) << lock.error().message;
  const auto other = run.prepare(false, false);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find(fmt::format("process {} on ", ::getpid())), std::string::npos)
      << other.error().message;
}

constexpr std::uint64_t kStart = 0xfedcba9876543210, kFormerStart = 7;

std::string make_step(std::int64_t step) {
  StepMetrics line;
  line.step = step;
  line.accuracy = 0.5;
  line.step_seconds = static_cast<double>(step);
  return to_json(line) + "\n";
}

// A rank on a host of its own that goes on with the files where the one that wrote them, on another host, was lost.
TEST(RunDirectory, WhoTakesOverSetsAsideWhatAnotherStartHasLeft) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  write(folder.path, kOld);
  ASSERT_TRUE(make_folders(run.checkpoint_folder() / "step-00000009"));
  ASSERT_TRUE(run.note_writer(kFormerStart, 1));
  write(folder.path, {{"logs/rank-1.log", "of this start, too"}});
  EXPECT_FALSE(run.find_writer(kStart)->has_value());
  {
    const auto lock = run.take_over(kStart, 1);
    ASSERT_TRUE(lock) << lock.error().message;
    EXPECT_TRUE(lock->valid()) << "another run is kept out";
    EXPECT_FALSE(std::filesystem::exists(run.checkpoint_folder()));
    EXPECT_FALSE(std::filesystem::exists(run.metrics_file()));
    EXPECT_FALSE(std::filesystem::exists(run.job_file()));
    EXPECT_TRUE(std::filesystem::exists(run.log_file(1)));
    EXPECT_EQ(*run.find_writer(kStart), 1);
    write(folder.path, {{"metrics.jsonl", make_step(5)}, {"job.yaml", "new"}});
    const auto again = run.take_over(kStart, 1);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*read_file(run.job_file()), "new") << "it is this start's";
    ASSERT_TRUE(run.settle_replaced());
  }
  EXPECT_EQ(*read_file(run.job_file()), "new");
  const std::filesystem::path earlier = folder.path / "earlier-fedcba9876543210";
  EXPECT_EQ(*read_file(earlier / "job.yaml"), kOld.at("job.yaml"));
  EXPECT_TRUE(std::filesystem::exists(earlier / "checkpoint/step-00000009"));
}

// Where all ranks have one folder, one that is put out sees that another one goes on with the files.
TEST(RunDirectory, ACommonFolderSaysWhoWritesIt) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  ASSERT_TRUE(run.note_writer(kStart, 0));
  write(folder.path, {{"job.yaml", "a job"}, {"metrics.jsonl", make_step(3)}});
  EXPECT_EQ(*run.find_writer(kStart), 0);
  const auto lock = run.take_over(kStart, 2);
  ASSERT_TRUE(lock) << lock.error().message;
  EXPECT_FALSE(lock->valid()) << "nothing is moved";
  EXPECT_EQ(*run.find_writer(kStart), 2);
  EXPECT_EQ(*read_file(run.job_file()), "a job");
}

TEST(RunDirectory, KnowsHowLongTheLastStepsTook) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  EXPECT_EQ(run.last_step_seconds(), 0);
  write(folder.path, {{"metrics.jsonl", make_step(2) + make_step(30) + make_step(4) + "{\"step\":"}});
  EXPECT_EQ(run.last_step_seconds(), 4);
}

}  // namespace
}  // namespace motley::train
