// A command line that is not accepted is answered with the wrong word, what was probably meant, and what is accepted.
#include "motley/cli/usage_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/example_program.h"

namespace motley::cli {
namespace {

constexpr RenamedFlag kOldFlags[] = {{"motley plan", "--page", "--html"}, {"motley", "learn", "train"}};
constexpr RenamedKey kOldKeys[] = {{"batch", "global_batch_size"}, {"tables.colour", "embedding.comm_dtype"}};

std::string explain(const std::string& line) {
  ExampleProgram program;
  const auto problem = program.parse(line);
  return problem ? explain_usage_error(program.app, *problem, {kOldFlags, kOldKeys}) : "accepted";
}

TEST(UsageError, NamesTheCommandThatWasMeant) {
  EXPECT_EQ(explain("trian"), "motley: 'trian' is no command; did you mean 'train'? accepted: plan, train, schedule");
  EXPECT_EQ(explain("dance"), "motley: 'dance' is no command; accepted: plan, train, schedule");
  EXPECT_EQ(explain("learn"), "motley: 'learn' is no command; it is now 'train'; accepted: plan, train, schedule");
  EXPECT_EQ(explain(""), "motley: needs a command; accepted: plan, train, schedule");
  EXPECT_EQ(explain("schedule repotr x"),
            "motley schedule: 'repotr' is no command; did you mean 'report'? accepted: report");
}

TEST(UsageError, NamesTheFlagThatWasMeant) {
  EXPECT_EQ(
      explain("plan --methdo greedy"),
      "motley plan: unknown flag '--methdo'; did you mean '--method'? accepted: --profile, --method, --time-limit, "
      "--what-if, --output, --html, --compare");
  EXPECT_EQ(
      explain("train job.yaml --bacth 12"),
      "motley train: unknown flag '--bacth'; did you mean '--global-batch-size'? accepted: those that motley train "
      "--help=all lists");
  EXPECT_EQ(
      explain("train --global_batch_size=12"),
      "motley train: unknown flag '--global_batch_size'; did you mean '--global-batch-size'? accepted: those that "
      "motley train --help=all lists");
  EXPECT_EQ(explain("train --optimizer sgd"),
            "motley train: '--optimizer' is a group of flags; accepted: --optimizer.name, --optimizer.learning-rate");
  EXPECT_EQ(explain("plan --zzzzzz").substr(0, 50), "motley plan: unknown flag '--zzzzzz'; accepted: --");
}

// Of those that end in the same word the commoner one first; what is cut short is made whole.
TEST(UsageError, NamesEveryGroupThatHasTheFlag) {
  EXPECT_THAT(explain("train --learning-rate 0.1"),
              testing::HasSubstr("did you mean '--optimizer.learning-rate' or '--embedding.learning-rate'? accepted"));
  EXPECT_THAT(explain("train --lr 0.1"), testing::HasSubstr("did you mean '--optimizer.learning-rate'"));
  EXPECT_THAT(explain("train --optimizer.learning-rat 0.1"),
              testing::HasSubstr("did you mean '--optimizer.learning-rate'? accepted"));
}

TEST(UsageError, OfAValueComesBeforeWhatIsLeftUnread) {
  EXPECT_EQ(
      explain("plan --time-limit 60 -- --x"),
      "motley plan: --time-limit: '60' is not accepted; accepted: a duration such as '250ms', '90s' or '2h' of at "
      "least 1s");
  EXPECT_EQ(explain("plan --time-limit"),
            "motley plan: --time-limit: has no value; accepted: DURATION (time limit (at least 1s))");
}

TEST(UsageError, NamesWhatAnOldFlagIsNow) {
  EXPECT_EQ(explain("plan --page x.html"), "motley plan: unknown flag '--page'; it is now '--html'");
  EXPECT_EQ(explain("train --batch 12"), "motley train: unknown flag '--batch'; it is now '--global-batch-size'");
  EXPECT_EQ(explain("plan --batch 12").find("is now"), std::string::npos) << "of keys that the command has";
}

TEST(UsageError, NamesArgumentsThatAreMissingOrTooMany) {
  EXPECT_EQ(explain("schedule report"), "motley schedule report: RUN is missing; accepted: folder of the run");
  EXPECT_EQ(explain("train a b"), "motley train: unexpected argument 'b'; accepted: JOB, and flags");
  EXPECT_EQ(explain("plan x"), "motley plan: unexpected argument 'x'; accepted: flags alone");
}

TEST(UsageError, OfAValueIsThatOfTheOption) {
  EXPECT_EQ(explain("plan --method greeedy"),
            "motley plan: --method: 'greeedy' is not accepted; did you mean 'greedy'? accepted: one of exact, greedy");
}

}  // namespace
}  // namespace motley::cli
