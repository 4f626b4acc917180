// What is said at the end of made-up runs, against the figures that they were made from.
#include "motley/report/closing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/base/units.h"
#include "motley/report/report.h"
#include "motley/report/run.h"
#include "motley/train/records/typical_steps.h"
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
  // The last epoch began at step 468, and each epoch has 60,000 samples: 232 steps are 0.99 of it.
  EXPECT_THAT(text, ContainsRegex("^done in 1 min [0-9]+ s: 700 steps, 2.99 epochs\n"));
  EXPECT_THAT(text, ContainsRegex("  training loss       0.2[0-9]+, 2.[0-9]+ at the beginning\n"));
  EXPECT_THAT(text, HasSubstr("  test accuracy       88.6 % (target ≥ 88.0 %, met)\n"));
  EXPECT_THAT(text, HasSubstr("  speed-up            2.58× over the equal split (target ≥ 2.20×, met)\n"));
  EXPECT_THAT(text, ContainsRegex(
                        "  longest wait        4.2 % of all steps, [0-9.]+ % of a typical one .target ≤ 10.0 %, met"));
  EXPECT_THAT(text, ContainsRegex("a typical step +14[0-9] ms, 1,7[0-9][0-9] samples/s: computing 9[0-9] %, "));
  EXPECT_THAT(text, ContainsRegex("page +[^ ]*/run/report.html\n$"));
  EXPECT_THAT(text, Not(HasSubstr("samples   ")));  // each was used once, which is nothing to tell
}

TEST(Closing, OfARunWithoutASummaryOrASecondWorker) {
  const std::string text = closing({.speeds = {1}, .names = {"only"}, .steps = 30, .finished = false});
  EXPECT_THAT(text, ContainsRegex("^done in [0-9.]+ s: 30 steps, 0.13 epochs\n"));
  EXPECT_THAT(text, Not(HasSubstr("accuracy")));
  EXPECT_THAT(text, Not(HasSubstr("waiting")));
}

TEST(Closing, SaysWhereTheLossEndedAndWhatIsWrongWithIt) {
  EXPECT_THAT(closing({.last_loss = 1e22}), HasSubstr("  training loss       1e+22, far above the 2."));
  EXPECT_THAT(closing({.last_loss = std::nan("")}), HasSubstr("  training loss       not finite any more, 2."));
  const TemporaryFolder folder;
  FakeRun{.steps = 10}.write(folder.path / "run");
  const double first = read_run(folder.path / "run")->metrics.steps.front().loss;
  EXPECT_THAT(closing({.steps = 10, .last_loss = 1.005 * first}),
              HasSubstr(", as at the beginning: the network has learned little or nothing\n"));
  EXPECT_THAT(closing({.steps = 10, .last_loss = 0.98 * first}), Not(HasSubstr("as at the beginning")));
}

// The closing text, the page and the summary take a typical step from the same lines.
TEST(Closing, SaysTheSameAsThePage) {
  const TemporaryFolder folder;
  FakeRun run;
  run.write(folder.path / "run");
  const std::string text = *closing_text(folder.path / "run"), page = *render_run(folder.path / "run");
  const auto read = read_run(folder.path / "run");
  ASSERT_TRUE(read);
  const Figures figures = compute_figures(*read);
  const train::TypicalSteps steps = train::choose_typical_steps(read->metrics, 4);
  EXPECT_DOUBLE_EQ(figures.balanced->seconds, train::typical_seconds(steps.own));
  EXPECT_DOUBLE_EQ(figures.equal->seconds, train::typical_seconds(steps.equal));
  for (const std::string& words : {describe_length(*read, figures), format_number(*figures.samples_per_second()),
                                   format_seconds(run_seconds(*read)), format_seconds(figures.balanced->seconds)}) {
    EXPECT_THAT(text, HasSubstr(words));
    EXPECT_THAT(page, HasSubstr(words));
  }
}

TEST(Closing, OfARunWithoutSteps) {
  EXPECT_EQ(closing({.steps = 0}), "done: no step was left to do\n");
}

}  // namespace
}  // namespace motley::report
