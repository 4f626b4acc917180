// What is in a run's folder after a start that was to replace the run.
#include "motley/train/job/run_directory.h"

#include <gtest/gtest.h>

#include <map>

#include "motley/base/os/file.h"
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

}  // namespace
}  // namespace motley::train
