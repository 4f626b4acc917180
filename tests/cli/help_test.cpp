// Help of a command: all of it where it is short, else the commonest keys and the topics of the others.
#include "motley/cli/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/example_program.h"

namespace motley::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(Help, OfACommandHasItsFlagsWithTypeAndDefault) {
  const std::string help = short_help(ExampleProgram().command("plan"));
  EXPECT_THAT(help, HasSubstr("Choose a plan\n\nUsage: motley plan [FLAGS]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --profile PATH                  profile to plan from [default: this machine's]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --time-limit DURATION           time limit (at least 1s) [default: 1min]\n"));
  EXPECT_THAT(help, HasSubstr("\n  --compare                       compare all methods [switch; default: off]\n"));
  EXPECT_THAT(help, HasSubstr("Example:\n  motley plan --compare\n"));
}

TEST(Help, OfAJobsCommandIsShortAndNamesTopics) {
  const CommandText command = ExampleProgram().command("train");
  EXPECT_THAT(command.topics(), ElementsAre("general", "embedding", "optimizer", "data"));
  const std::string help = short_help(command);
  EXPECT_THAT(help, AllOf(HasSubstr("Usage: motley train [JOB] [FLAGS]"), HasSubstr("--global-batch-size INT"),
                          HasSubstr("--optimizer.name {sgd,adam}")));
  EXPECT_THAT(help, HasSubstr("those of a topic: general,\nembedding, optimizer, data\n"));
  EXPECT_THAT(help, AllOf(Not(HasSubstr("--seed")), Not(HasSubstr("--embedding.learning-rate"))));
}

TEST(Help, OfATopicHasAllOfItsKeysAndNoOthers) {
  const CommandText command = ExampleProgram().command("train");
  const std::string help = help_of_topic(command, "optimizer").value();
  EXPECT_THAT(help, AllOf(HasSubstr("--optimizer.name"), HasSubstr("--optimizer.learning-rate NUMBER")));
  EXPECT_THAT(help, AllOf(Not(HasSubstr("--seed")), Not(HasSubstr("--data"))));
  EXPECT_THAT(help_of_topic(command, "general").value(), AllOf(HasSubstr("--seed"), HasSubstr("--global-batch-size")));
  const std::string all = help_of_topic(command, "all").value();
  for (const FlagText& flag : command.flags) EXPECT_THAT(all, HasSubstr(flag.name + " "));
  EXPECT_EQ(help_of_topic(command, "optimiser").error().message,
            "motley train: --help: 'optimiser' is no topic; did you mean 'optimizer'? accepted: general, embedding, "
            "optimizer, data, all");
}

TEST(Help, NamesTheFlagsOfEveryCommandInOneLine) {
  const ExampleProgram program;
  const std::string help = short_help(program.command("plan"));
  EXPECT_THAT(help, HasSubstr("\nFlags of every command (motley --help explains them): --help\n"));
  EXPECT_THAT(help_of_topic(program.command("plan"), "all").value(),
              HasSubstr("\nFlags of every command:\n  -h, --help "));
}

TEST(Help, HasTheGroupsOfACommandsFlagsAndItsOwnUsage) {
  ExampleProgram program;
  CLI::App& plan = *program.app.get_subcommand("plan");
  plan.get_option("--compare")->group("Flags of comparisons");
  set_usage(plan, "motley plan THIS\n   or: motley plan THAT");
  const CommandText command = describe(plan);
  EXPECT_THAT(command.groups(), ElementsAre("Flags", "Flags of comparisons"));
  const std::string help = short_help(command);
  EXPECT_THAT(help, HasSubstr("\n\nUsage: motley plan THIS\n   or: motley plan THAT\n"));
  EXPECT_THAT(help, HasSubstr("\nFlags of comparisons:\n  --compare "));
  EXPECT_THAT(help, AllOf(HasSubstr("\nExample:\n  motley plan --compare\n"), Not(HasSubstr("Usage: \n"))));
}

TEST(Help, ListsCommandsButNotHiddenOnes) {
  const ExampleProgram program;
  const std::string help = short_help(describe(program.app));
  EXPECT_THAT(help, AllOf(HasSubstr("\nCommands:\n  plan "), HasSubstr("\n  train "), Not(HasSubstr("secret"))));
  EXPECT_EQ(describe(*program.app.get_subcommand("schedule")->get_subcommand("report")).usage(),
            "motley schedule report RUN [FLAGS]");
}

}  // namespace
}  // namespace motley::cli
