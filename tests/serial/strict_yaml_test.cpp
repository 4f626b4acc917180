// What users write is read as meant or refused with file, line, path, value and what would be accepted.
#include "motley/serial/strict_yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

StrictYaml parsed(const std::string& text) {
  auto file = StrictYaml::parse(text, "job.yaml");
  EXPECT_TRUE(file) << file.error().message;
  return *file;
}

std::string message(const StrictYaml& file) {
  const Status status = file.finish();
  return status ? "" : status.error().message;
}

TEST(StrictYaml, ReadsEveryKindOfValue) {
  const StrictYaml file = parsed(R"(
name: "128"
rate: 1e-3
count: -7
fast: true
wait: 250 ms
memory: 16 GiB
link: 1 Gb/s
mode: dynamic
cores: [0, 3]
optimizer: {momentum: 0.9}
workers:
  - name: a
  - name: b
)");
  EXPECT_EQ(file.text("name"), "128");
  EXPECT_EQ(file.number("rate"), 1e-3);
  EXPECT_EQ(file.integer("count"), -7);
  EXPECT_TRUE(file.boolean("fast"));
  EXPECT_EQ(file.seconds("wait"), 0.25);
  EXPECT_EQ(file.bytes("memory"), 16.0 * 1073741824);
  EXPECT_EQ(file.bytes_per_second("link"), 1.25e8);
  EXPECT_EQ(file.choice("mode", {"fixed", "dynamic"}), "dynamic");
  EXPECT_EQ(file.choose_from<int>("mode", {{"fixed", 1}, {"dynamic", 2}}), 2);
  EXPECT_THAT(file.integers("cores"), ElementsAre(0, 3));
  EXPECT_EQ(file.number("optimizer.momentum"), 0.9);
  EXPECT_EQ(file.section("optimizer").number("momentum"), 0.9);
  ASSERT_EQ(file.list("workers").size(), 2U);
  for (const StrictYaml& worker : file.list("workers")) {
    EXPECT_EQ(worker.text("name").size(), 1U);
  }
  EXPECT_EQ(message(file), "");
}

TEST(StrictYaml, AbsentValuesAreFallbacksOrNamed) {
  const StrictYaml file = parsed("empty:\n");
  EXPECT_FALSE(file.has("empty"));
  EXPECT_EQ(file.number("empty", {.fallback = 3}), 3);
  EXPECT_EQ(file.text("a.b", "c"), "c");
  EXPECT_TRUE(file.boolean("e", true));
  EXPECT_TRUE(file.list("f").empty());
  EXPECT_EQ(message(file), "");
  file.integer("model.depth", {.min = 1, .max = 9});
  EXPECT_EQ(message(file), "job.yaml:1: model.depth is missing; accepted: an integer from 1 to 9");
}

TEST(StrictYaml, RefusalsNameLinePathValueAndWhatIsAccepted) {
  const struct {
    std::string value;
    void (*ask)(const StrictYaml&);
    std::string message;
  } cases[] = {
      {"fast", [](const StrictYaml& f) { f.number("a.b", {.above = 0.0}); }, "is 'fast'; accepted: a number above 0"},
      {"0", [](const StrictYaml& f) { f.number("a.b", {.above = 0.0}); }, "is '0'; accepted: a number above 0"},
      {".inf", [](const StrictYaml& f) { f.number("a.b"); }, "is '.inf'; accepted: a number"},
      {"1e400", [](const StrictYaml& f) { f.number("a.b"); }, "is '1e400'; accepted: a number"},
      {"1.5", [](const StrictYaml& f) { f.integer("a.b", {.min = 1}); },
       "is '1.5'; accepted: an integer of at least 1"},
      {"99999999999999999999", [](const StrictYaml& f) { f.integer("a.b"); },
       "is '99999999999999999999'; accepted: an integer"},
      {"yes", [](const StrictYaml& f) { f.boolean("a.b"); }, "is 'yes'; accepted: true, false"},
      {"3 KB", [](const StrictYaml& f) { f.seconds("a.b", {.min = 1}); },
       "is '3 KB'; accepted: a duration such as '250ms', '90s' or '2h' of at least 1s"},
      {"100", [](const StrictYaml& f) { f.bytes_per_second("a.b"); },
       "is '100'; accepted: a rate such as '10Gbps' (bits) or '1.5GB/s' (bytes) above 0"},
      {"dynamc", [](const StrictYaml& f) { f.choice("a.b", {"fixed", "dynamic"}); },
       "is 'dynamc', did you mean 'dynamic'?; accepted: fixed, dynamic"},
      {"[1, x]", [](const StrictYaml& f) { f.integers("a.b", {.min = 0}); },
       "[1] is 'x'; accepted: an integer of at least 0"},
      {"[]", [](const StrictYaml& f) { f.list("a.b", {.min_size = 1, .max_size = 8}); },
       "has 0 elements; accepted: from 1 to 8 of them"},
      {"{c: 1}", [](const StrictYaml& f) { f.text("a.b"); }, "is a mapping; accepted: a text"},
      {"c", [](const StrictYaml& f) { f.section("a.b").integer("d"); }, "is a plain value; accepted: a mapping"},
      {"c", [](const StrictYaml& f) { f.integer("a.b.d"); }, "is a plain value; accepted: a mapping"},
      {"''", [](const StrictYaml& f) { f.text("a.b"); }, "is ''; accepted: a text that is not empty"},
      {"1", [](const StrictYaml& f) { f.refuse("a.b", "is more than a.c"), f.has("a.b"); }, "is more than a.c"},
  };
  for (const auto& c : cases) {
    const StrictYaml file = parsed("# a comment\na:\n  b: " + c.value + "\n");
    c.ask(file);
    const std::string separator = c.message.starts_with('[') ? "" : " ";
    EXPECT_EQ(message(file), "job.yaml:3: a.b" + separator + c.message);
    EXPECT_EQ(file.finish().error().code, ErrorCode::kInvalidInput);
  }
}

TEST(StrictYaml, UnknownKeysAreNamedWithTheNearestKnownOne) {
  const StrictYaml file = parsed("batch: 8\nlearning_rte: 0.1\nworkers:\n  - nam: a\nextra: {x: 1, y: 2}\n");
  file.integer("batch");
  file.number("learning_rate", {.fallback = 0.1});
  for (const StrictYaml& worker : file.list("workers")) {
    worker.text("name", "w");
  }
  EXPECT_EQ(message(file),
            "job.yaml: 3 problems\n"
            "  job.yaml:2: learning_rte is an unknown key, did you mean 'learning_rate'?; accepted here: batch, "
            "learning_rate, workers\n"
            "  job.yaml:4: workers[0].nam is an unknown key, did you mean 'name'?; accepted here: name\n"
            "  job.yaml:5: extra is an unknown key; accepted here: batch, learning_rate, workers");
}

TEST(StrictYaml, AValueMayBePlainOrASection) {
  const StrictYaml file = parsed("a: 1\nb: {c: 2}\n");
  EXPECT_FALSE(file.is_section("a"));
  EXPECT_TRUE(file.is_section("b"));
  EXPECT_FALSE(file.is_section("z"));
}

TEST(StrictYaml, RefusesWhatIsNotOnePlainYamlMapping) {
  const std::pair<std::string, std::string> cases[] = {
      {"a: [1", "job.yaml:"},
      {"a: 1\na: 2\n", "job.yaml:2: the key 'a' is there twice"},
      {"[1, 2]", "a list at the top"},
      {"--- {a: 1}\n--- {a: 2}\n", "goes on after the end"},
      {"a: 1\n,", ""},
      {",", ""},
      {"[a, b]: 1\n", "a key is a list"},
      {"a: &x [*x]\n", ""},
      {std::string(40, '[') + std::string(40, ']'), "too deep"},
      {std::string(1'000'001, '#'), "1000001 bytes"},
  };
  for (const auto& [text, expected] : cases) {
    const auto file = StrictYaml::parse(text, "job.yaml");
    ASSERT_FALSE(file) << text.substr(0, 60);
    EXPECT_THAT(file.error().message, HasSubstr(expected));
  }
}

TEST(StrictYaml, AliasesCannotGrowWithoutBound) {
  std::string text = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
  for (int i = 1; i < 12; ++i) {
    text += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n", i, i - 1);
  }
  const auto file = StrictYaml::parse(text, "job.yaml");
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("too long"));
}

}  // namespace
}  // namespace motley::cluster
