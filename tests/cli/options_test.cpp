// Flags that come from a table: values reach their fields, help has units, choices and defaults, and a refusal names
// the flag, the value and what is accepted.
#include "motley/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/cli/command_text.h"

namespace motley::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Limits {
  double time_limit = 60;
  double bandwidth = 0;  // 0: none is given

  static const OptionTable<Limits>& options() {
    using enum OptionKind;
    static const OptionTable<Limits> options = {
        {{"time_limit", kSeconds, "time limit", 1}, &Limits::time_limit},
        {{"bandwidth", kBytesPerSecond, "bandwidth", 1}, &Limits::bandwidth},
    };
    return options;
  }
};

struct Arguments {
  Limits limits;
  bool compare = false;
  std::uint64_t seed = 1;
  std::string placement = "any";
  std::vector<std::string> policies;
  std::vector<std::int64_t> batches = {1, 4};

  static const OptionTable<Arguments>& options() {
    using enum OptionKind;
    static const OptionTable<Arguments> options = {
        {"", &Arguments::limits},
        {{"compare", kBoolean, "compare"}, &Arguments::compare},
        {{"seed", kInteger, "seed", 0}, &Arguments::seed},
        {choice("placement", "placement", {"any", "compact"}, {{"ring", "compact"}}), &Arguments::placement},
        {{.key = "policy", .kind = kTexts, .help = "policies; default: all that there are", .choices = {"fifo", "las"}},
         &Arguments::policies},
        {{"batch_sizes", kIntegers, "batch sizes", 1}, &Arguments::batches},
    };
    return options;
  }
};

// What a command line comes to: "" where it is accepted, else the message.
std::string parse(const std::string& line, Arguments& arguments, std::string& file) {
  CLI::App app("test", "test");
  app.add_option("FILE", file);
  add_options(app, arguments);
  try {
    app.parse(line, false);
  } catch (const CLI::ParseError& problem) {
    return problem.what();
  }
  return "";
}

TEST(Options, FlagsReachTheirFields) {
  Arguments arguments;
  std::string file;
  EXPECT_EQ(
      parse("--time-limit 5min --bandwidth 10Gbps --compare --seed 7 --placement compact --policy las --policy fifo "
            "trace.csv --batch-sizes 2,8",
            arguments, file),
      "");
  EXPECT_EQ(arguments.limits.time_limit, 300);
  EXPECT_EQ(arguments.limits.bandwidth, 1.25e9);
  EXPECT_TRUE(arguments.compare);
  EXPECT_EQ(arguments.seed, 7U);
  EXPECT_EQ(arguments.placement, "compact");
  EXPECT_THAT(arguments.policies, ElementsAre("las", "fifo"));
  EXPECT_THAT(arguments.batches, ElementsAre(2, 8));
  EXPECT_EQ(file, "trace.csv") << "a repeated flag takes one value at a time";
}

TEST(Options, RefusalsNameFlagValueAndWhatIsAccepted) {
  const auto refused = [](const std::string& line) {
    Arguments arguments;
    std::string file;
    return parse(line, arguments, file);
  };
  EXPECT_EQ(refused("--time-limit 5"),
            "--time-limit: '5' is not accepted; accepted: a duration such as '250ms', '90s' or '2h' of at least 1s");
  EXPECT_THAT(refused("--bandwidth 100"), HasSubstr("--bandwidth: '100' is not accepted; accepted: a rate such as"));
  EXPECT_THAT(refused("--placement ring"), HasSubstr("accepted: one of any, compact (ring is now compact)"));
  EXPECT_THAT(refused("--policy las --policy best"), HasSubstr("--policy: 'best' is not accepted"));
  EXPECT_THAT(refused("--seed -1"), HasSubstr("--seed: '-1' is not accepted; accepted: an integer of at least 0"));
  EXPECT_THAT(refused("--batch-sizes 0,1"), HasSubstr("--batch-sizes: '0,1' is not accepted"));
}

TEST(Options, HelpHasUnitsChoicesAndDefaults) {
  CLI::App app("test", "test");
  Arguments arguments;
  add_options(app, arguments);
  const CommandText command = describe(app);
  const auto said = [&](const char* flag) {
    const FlagText& text = *command.find(flag);
    return text.type + " | " + text.help + " | " + text.note();
  };
  EXPECT_EQ(said("--time-limit"), "DURATION | time limit (at least 1s) | [default: 1min]");
  EXPECT_EQ(said("--bandwidth"), "RATE | bandwidth (at least 1B/s) | [default: none]");
  EXPECT_EQ(said("--placement"), "{any,compact} | placement | [default: any]");
  EXPECT_EQ(said("--policy"), "{fifo,las} | policies | [default: all that there are]");
  EXPECT_EQ(said("--batch-sizes"), "INT,... | batch sizes (at least 1) | [default: [1, 4]]");
  EXPECT_EQ(said("--compare"), " | compare | [switch; default: off]");
  EXPECT_THAT(command.find("--placement")->choices(), ElementsAre("any", "compact"));
  EXPECT_TRUE(command.find("--policy")->is_repeated);
  EXPECT_FALSE(command.find("--seed")->is_repeated);
}

}  // namespace
}  // namespace motley::cli
