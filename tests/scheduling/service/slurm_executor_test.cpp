// What the executor asks of Slurm: programs of the test's own stand in its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/os/file.h"
#include "motley/scheduling/executors/executors.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

class SlurmExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::getenv("PATH");
    ::setenv("PATH", (folder_.path.string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

  // Each question is a line of `questions`.
  void write_program(const std::string& name, const std::string& script) {
    const auto file = folder_.path / name;
    const std::string note = "echo " + name + " >> " + (folder_.path / "questions").string();
    ASSERT_TRUE(write_file(file, "#!/bin/sh\n" + note + "\n" + script + "\n"));
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  std::ptrdiff_t count_questions() const {
    const std::string text = read_file(folder_.path / "questions").value_or("");
    return std::ranges::count(text, '\n');
  }
  Attempt attempt(int job) const {
    return {job, "job", 1, {"true"}, "/", folder_.path / std::to_string(job), {{"n0", 1}}};
  }

  TemporaryFolder folder_;
  std::string path_;
};

// One that takes longer to answer than its answers hold is not asked anew for each attempt.
TEST_F(SlurmExecutorTest, ASlowSlurmIsAskedOnceForAllAttempts) {
  constexpr int kAttempts = 4;
  write_program("sinfo", "echo 'n0|2|1000|idle|(null)'");
  write_program("squeue", "sleep 1.2");
  const auto executor = make_slurm_executor({});
  ASSERT_TRUE(executor) << executor.error().message;
  const std::ptrdiff_t before = count_questions();
  for (int job = 1; job <= kAttempts; ++job) {
    EXPECT_EQ((*executor)->look(attempt(job))->state, AttemptStatus::State::kUnknown);
  }
  // One, but where this process is held up for longer than an answer holds.
  EXPECT_LT(count_questions() - before, kAttempts);
}

TEST_F(SlurmExecutorTest, ASlowSlurmIsAskedOnceForItsNodes) {
  constexpr int kLooks = 3;
  write_program("sinfo", "echo 'n0|2|1000|idle|(null)'");
  const auto executor = make_slurm_executor({});
  ASSERT_TRUE(executor) << executor.error().message;
  write_program("sinfo", "sleep 1.2; echo 'n0|2|1000|down|(null)'");
  const std::ptrdiff_t before = count_questions();
  for (int look = 0; look < kLooks; ++look) {
    EXPECT_EQ((*executor)->down_nodes().value_or(std::vector<std::string>()), std::vector<std::string>{"n0"});
  }
  EXPECT_LT(count_questions() - before, kLooks);
}

}  // namespace
}  // namespace motley::scheduling
