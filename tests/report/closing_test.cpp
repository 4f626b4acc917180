// What is said at the end of made-up runs, against the figures that they were made from.
#include "motley/report/closing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/report/fake_run.h"
#include "tests/temporary_folder.h"

namespace motley::report {
namespace {

using motley::report::testing::FakeRun;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string closing(const FakeRun& run) {
  const TemporaryFolder folder;
  run.write(folder.path / "run");
  const auto text = closing_text(folder.path / "run");
  EXPECT_TRUE(text) << text.error().message;
  return text.value_or("");
}

TEST(Closing, SaysWhatWasLearnedHowFastAndWhereThePageIs) {
  const std::string text = closing({});
  // 256 samples on speeds that add up to 2.75 of 1 / (1.5 ms), and about 5.5 ms of loading and exchange.
  EXPECT_THAT(text, ContainsRegex("^done in 1 min [0-9]+ s: 699 steps, 3 epochs, 1,7[0-9][0-9] samples/s\n"));
  EXPECT_THAT(text, HasSubstr("  test accuracy       88.6 % (target: at least 88.0 %, met)\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "  speed               2.58 times the equal split's (target: at least 2.20 times the equal split's, met)\n"));
  EXPECT_THAT(text, ContainsRegex("a step +14[0-9] ms: computing 9[0-9] %, "));
  EXPECT_THAT(text, ContainsRegex("page +[^ ]*/run/report.html\n$"));
  EXPECT_THAT(text, Not(HasSubstr("samples   ")));  // each was used once, which is nothing to tell
}

TEST(Closing, OfARunWithoutASummaryOrASecondWorker) {
  const std::string text = closing({.speeds = {1}, .names = {"only"}, .steps = 30, .finished = false});
  EXPECT_THAT(text, ContainsRegex("^done in [0-9.]+ s: 29 steps, 1 epoch, 6[0-9][0-9] samples/s\n"));
  EXPECT_THAT(text, Not(HasSubstr("accuracy")));
  EXPECT_THAT(text, Not(HasSubstr("waiting")));
}

TEST(Closing, OfARunWithoutSteps) {
  EXPECT_EQ(closing({.steps = 0}), "done: no step was left to do\n");
}

}  // namespace
}  // namespace motley::report
