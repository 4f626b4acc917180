// The option registry: values go from text to fields and back, and refusals say what would be accepted.
#include "motley/serial/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

struct Config {
  bool flag = false;
  std::int64_t count = 1;
  double rate = 0.5;
  double wait = 1;
  std::string mode = "fast";
  std::vector<std::int64_t> shape;
  int threads = 1;
  double bandwidth = 0;
  std::vector<std::string> policies;

  static const OptionTable<Config>& options() {
    static const OptionTable<Config> options = {
        {{"flag", OptionKind::kBoolean, "a flag"}, &Config::flag},
        {{"count", OptionKind::kInteger, "how many", 1, 10}, &Config::count},
        {{"rate", OptionKind::kReal, "a rate", 0}, &Config::rate},
        {{"wait", OptionKind::kSeconds, "a wait"}, &Config::wait},
        {choice("mode", "a mode", {"fast", "slow"}, {{"sluggish", "slow"}}), &Config::mode},
        {{"shape", OptionKind::kIntegers, "a shape", 1}, &Config::shape},
        {{"threads", OptionKind::kInteger, "threads", 1, 64}, &Config::threads},
        {{"bandwidth", OptionKind::kBytesPerSecond, "a rate", 1}, &Config::bandwidth},
        {{.key = "policy", .kind = OptionKind::kTexts, .help = "policies", .choices = {"fifo", "las"}},
         &Config::policies},
    };
    return options;
  }
};

TEST(Options, TextGoesToFieldsAndBack) {
  Config config;
  ASSERT_TRUE(Config::options().set(config, "flag", "yes"));
  ASSERT_TRUE(Config::options().set(config, "count", " 7 "));
  ASSERT_TRUE(Config::options().set(config, "wait", "2 min"));
  ASSERT_TRUE(Config::options().set(config, "mode", "slow"));
  ASSERT_TRUE(Config::options().set(config, "shape", "[1, 28,28]"));
  ASSERT_TRUE(Config::options().set(config, "threads", "8"));
  ASSERT_TRUE(Config::options().set(config, "bandwidth", "10Gbps"));
  ASSERT_TRUE(Config::options().set(config, "policy", "las"));
  EXPECT_TRUE(config.flag);
  EXPECT_EQ(config.count, 7);
  EXPECT_EQ(config.threads, 8);
  EXPECT_EQ(config.bandwidth, 1.25e9);
  EXPECT_EQ(config.policies, std::vector<std::string>{"las"});
  EXPECT_EQ(config.wait, 120);
  EXPECT_EQ(config.shape, (std::vector<std::int64_t>{1, 28, 28}));
  Config again;
  for (const auto& entry : Config::options().entries()) {
    ASSERT_TRUE(Config::options().set(again, entry.text.key, Config::options().get(config, entry))) << entry.text.key;
  }
  EXPECT_EQ(again.count, config.count);
  EXPECT_EQ(again.wait, config.wait);
  EXPECT_EQ(again.bandwidth, config.bandwidth);
  EXPECT_EQ(again.rate, config.rate);
  EXPECT_EQ(again.shape, config.shape);
}

TEST(Options, RefusalsNameKeyValueAndWhatIsAccepted) {
  Config config;
  const auto message = [&](const char* key, const char* value) {
    const Status status = Config::options().set(config, key, value);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(message("count", "11"), "count: '11' is not accepted; accepted: an integer from 1 to 10");
  EXPECT_EQ(message("count", "7x"), "count: '7x' is not accepted; accepted: an integer from 1 to 10");
  EXPECT_EQ(message("mode", "medium"), "mode: 'medium' is not accepted; accepted: one of fast, slow");
  EXPECT_EQ(message("mode", "sluggish"),
            "mode: 'sluggish' is not accepted; accepted: one of fast, slow (sluggish is now slow)");
  EXPECT_EQ(message("wait", "90"), "wait: '90' is not accepted; accepted: a duration such as '250ms', '90s' or '2h'");
  EXPECT_THAT(message("bandwidth", "10"), ::testing::HasSubstr("a rate such as '10Gbps'"));
  EXPECT_EQ(message("policy", "drf"), "policy: 'drf' is not accepted; accepted: one of fifo, las");
  EXPECT_THAT(message("rate", "nan"), ::testing::HasSubstr("a number of at least 0"));
  EXPECT_THAT(message("shape", "[1, 0]"), ::testing::HasSubstr("a list of integers"));
  EXPECT_EQ(message("cuont", "1"), "unknown key 'cuont'; did you mean 'count'?");
  EXPECT_EQ(message("zzzzzzzz", "1"),
            "unknown key 'zzzzzzzz'; accepted: flag, count, rate, wait, mode, shape, threads, bandwidth, policy");
  EXPECT_EQ(message("mode", "fats"), "mode: 'fats' is not accepted; did you mean 'fast'? accepted: one of fast, slow");
}

TEST(Options, NamesMayStandInBrackets) {
  const OptionText option{"columns", OptionKind::kNames, "columns"};
  EXPECT_EQ(option.accepted(), "a list of names, such as [one, two] or one,two");
  const std::pair<const char*, const char*> cases[] = {
      {"a, b", "a, b"}, {" [a, b] ", "a, b"},    {"[ ]", ""}, {"", ""}, {"a[0]", "a[0]"},
      {"[[a]]", "[a]"}, {"[a], [b]", "[a], [b]"}};
  for (const auto& [text, names] : cases) {
    const auto value = parse_option(option, text);
    ASSERT_TRUE(value) << value.error().message;
    EXPECT_EQ(std::get<std::string>(*value), names);
    const auto again = parse_option(option, format_option(option, *value));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, *value);
  }
}

struct Whole {
  std::string name = "a";
  Config part;
  Config beside;

  static const OptionTable<Whole>& options() {
    static const OptionTable<Whole> options = {
        {{"name", OptionKind::kText, "a name"}, &Whole::name}, {"part", &Whole::part}, {"", &Whole::beside}};
    return options;
  }
};

TEST(Options, OfAPartFollowItsPrefixInItsPlace) {
  Whole whole;
  const auto& options = Whole::options();
  EXPECT_THAT(options.keys(),
              ::testing::ElementsAre("name", "part.flag", "part.count", "part.rate", "part.wait", "part.mode",
                                     "part.shape", "part.threads", "part.bandwidth", "part.policy", "flag", "count",
                                     "rate", "wait", "mode", "shape", "threads", "bandwidth", "policy"));
  ASSERT_TRUE(options.set(whole, "part.count", "3"));
  ASSERT_TRUE(options.set(whole, "count", "4"));
  EXPECT_EQ(whole.part.count, 3);
  EXPECT_EQ(whole.beside.count, 4);
  const auto entry = options.find("part.count");
  ASSERT_TRUE(entry);
  EXPECT_EQ(options.get(whole, **entry), "3");
  EXPECT_EQ(options.set(whole, "part.count", "11").error().message,
            "part.count: '11' is not accepted; accepted: an integer from 1 to 10");
  EXPECT_EQ(options.set(whole, "part.cuont", "1").error().message,
            "unknown key 'part.cuont'; did you mean 'part.count'?");
  EXPECT_THAT(options.set(whole, "zzzzzzzz", "1").error().message,
              ::testing::HasSubstr("accepted: name, part.*, flag"));
}

TEST(Options, AGroupIsAnsweredWithTheKeyThatWasMeant) {
  Whole whole;
  EXPECT_EQ(Whole::options().set(whole, "part", "slow").error().message,
            "'part' is a group of keys; did you mean 'part.mode: slow'? accepted: part.flag, part.count, part.rate, "
            "part.wait, part.mode, part.shape, part.threads, part.bandwidth, part.policy");
  EXPECT_EQ(Whole::options().set(whole, "part", "10").error().message.substr(0, 66),
            "'part' is a group of keys; did you mean 'part.count: 10'? accepted");
  EXPECT_EQ(Whole::options().set(whole, "part", "?").error().message.substr(0, 36),
            "'part' is a group of keys; accepted:");
}

TEST(Options, TheNearestKeyIsTheOneThatWasMistyped) {
  const std::vector<std::string> keys = {"global_batch_size", "optimizer.name", "batch_split.mode", "epochs",
                                         "workers",           "run-directory"};
  for (const auto& [typed, meant] : {std::pair("epohcs", "epochs"),
                                     {"workes", "workers"},
                                     {"optimiser.name", "optimizer.name"},
                                     {"batch_size", "global_batch_size"},
                                     {"bacth", "global_batch_size"},
                                     {"global-batch-size", "global_batch_size"},
                                     {"directory", "run-directory"},
                                     {"bacth-size", "global_batch_size"},
                                     {"precision", ""},
                                     {"ep", ""},
                                     {"", ""}}) {
    EXPECT_EQ(nearest_key(typed, keys), meant) << typed;
  }
  EXPECT_EQ(nearest_key("cup", {"cpu", "gpu"}), "cpu");
  EXPECT_EQ(nearest_key("tcsh", {"bash", "zsh", "fish"}), "") << "half of it is another word";
  EXPECT_EQ(nearest_key("mem", {"count", "memory", "speed"}), "memory");
  EXPECT_EQ(nearest_key("lr", {"seed", "optimizer.learning_rate"}), "optimizer.learning_rate");
  EXPECT_EQ(nearest_key(std::string(100, 'a'), {std::string(101, 'a')}), "") << "too long to be a mistyped one";
}

}  // namespace
}  // namespace motley
