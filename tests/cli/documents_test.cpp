// What is generated from the command line: completion, manual pages and the reference. That shells and groff take them
// is tested with the whole program (tests/scenarios/command_line.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/cli/completion.h"
#include "motley/cli/man_page.h"
#include "motley/cli/reference.h"
#include "tests/cli/example_program.h"

namespace motley::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Completion, OfEachShellKnowsCommandsFlagsChoicesAndFiles) {
  const CommandText program = describe(ExampleProgram().app);
  EXPECT_THAT(bash_completion(program),
              AllOf(HasSubstr("'motley plan --method') words='exact greedy' ;;"), HasSubstr("'motley plan --profile'"),
                    HasSubstr("'motley schedule') words='report"), HasSubstr("complete -F _motley motley")));
  EXPECT_THAT(zsh_completion(program),
              AllOf(HasSubstr("'--method=[how it'\\''s planned]:word:(exact greedy)'"),
                    HasSubstr("'*--what-if=[TYPE.price=VALUE \\[a question\\]\\: may be repeated]:TEXT: '"),
                    HasSubstr("'--output=[file to write the plan to]:FILE:_files'"), HasSubstr("'--compare[")));
  EXPECT_THAT(fish_completion(program),
              AllOf(HasSubstr("= \"motley plan\"' -l method -x -a 'exact greedy' -d 'how it\\'s planned'"),
                    HasSubstr("-l output -r -F"), HasSubstr("= \"motley\"' -a schedule")));
  for (const std::string& script : {bash_completion(program), zsh_completion(program), fish_completion(program)}) {
    EXPECT_THAT(script, Not(HasSubstr("secret")));
  }
}

TEST(ManPage, HasAllFlagsAndNoLineThatIsTakenForARequest) {
  const CommandText program = describe(ExampleProgram().app);
  const std::string page = man_page(program.commands[0], program, "1.2");
  EXPECT_THAT(page,
              AllOf(HasSubstr(".TH MOTLEY\\-PLAN 1 \"\" \"motley 1.2\""), HasSubstr(".SH NAME\nmotley\\-plan \\- "),
                    HasSubstr("\\fB\\-\\-time\\-limit\\fR \\fIDURATION\\fR"), HasSubstr("  .5 of it"),
                    HasSubstr("\\fBmotley\\-train\\fR(1)")));
  EXPECT_THAT(man_page(program.commands[1], program, "1.2"), HasSubstr(".SS optimizer\n.TP\n"));
}

TEST(Reference, HasATableOfEachCommand) {
  const std::string page = command_reference(describe(ExampleProgram().app));
  EXPECT_THAT(page, AllOf(HasSubstr("## motley plan\n"), HasSubstr("| `--output` | `FILE` | plan.json |"),
                          HasSubstr("## motley schedule report\n"), HasSubstr("| `RUN` | `PATH` | required |")));
  EXPECT_THAT(page, Not(HasSubstr("--optimizer"))) << "keys of jobs have a page of their own";
}

}  // namespace
}  // namespace motley::cli
