// Runs held against each other: every figure against one computed here from the lines of metrics.jsonl, and what is
// said of them.
#include "motley/report/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/report/fake_run.h"
#include "tests/temporary_folder.h"

namespace motley::report {
namespace {

using motley::report::testing::FakeRun;
using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// An equal split on unequal workers, and a dynamic one on the same.
class ComparisonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    equal_.mode = "equal";
    equal_.baseline_every = 100'000;
    equal_.steps = 200;
    equal_.keeps_equal = true;
    dynamic_.baseline_every = 100'000;
    dynamic_.steps = 200;
    equal_.job = "name: toy\nbatch_split:\n  mode: equal\n  every: 4\noptimizer:\n  learning_rate: 0.05\n";
    dynamic_.job = "name: toy\nbatch_split:\n  mode: dynamic\n  every: 4\noptimizer:\n  learning_rate: 0.05\n";
  }
  Comparison compare() {
    equal_.write(folder_.path / "equal");
    dynamic_.write(folder_.path / "dynamic");
    auto comparison = compare_runs({folder_.path / "equal", folder_.path / "dynamic"});
    EXPECT_TRUE(comparison) << comparison.error().message;
    return std::move(*comparison);
  }

  TemporaryFolder folder_;
  FakeRun equal_, dynamic_;
};

const ComparedFigure& figure(const Comparison& comparison, const std::string& name) {
  const auto found = std::ranges::find(comparison.figures, name, &ComparedFigure::name);
  EXPECT_NE(found, comparison.figures.end()) << name;
  return *found;
}

// The mean of a value of the steps whose time is in the middle half, from the file itself.
double middle_mean(const std::filesystem::path& folder, bool skips_first, double (*value)(const nlohmann::json&)) {
  std::vector<nlohmann::json> steps;
  const std::string text = *read_file(folder / "metrics.jsonl");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const auto line = nlohmann::json::parse(text.substr(at, end - at));
    at = end + 1;
    if (line.contains("step_seconds") && (!skips_first || line["step"] >= 20)) steps.push_back(line);
  }
  std::ranges::stable_sort(steps, {}, [](const nlohmann::json& line) { return line["step_seconds"].get<double>(); });
  const std::size_t quarter = steps.size() / 4;
  double sum = 0;
  for (std::size_t i = quarter; i < steps.size() - quarter; ++i) sum += value(steps[i]);
  return sum / static_cast<double>(steps.size() - 2 * quarter);
}

double mean(const nlohmann::json& list) {
  const auto values = list.get<std::vector<double>>();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TEST_F(ComparisonTest, FiguresAreThoseOfTheLines) {
  const Comparison comparison = compare();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto folder = folder_.path / (i == 0 ? "equal" : "dynamic");
    const auto expected = [&](double (*value)(const nlohmann::json&)) { return middle_mean(folder, i == 1, value); };
    const double seconds = expected([](const nlohmann::json& line) { return line["step_seconds"].get<double>(); });
    EXPECT_NEAR(*figure(comparison, "a step").values[i], seconds, 1e-9);
    EXPECT_NEAR(*figure(comparison, "samples per second").values[i], 256 / seconds, 1e-6);
    double sum = *figure(comparison, "– other").values[i];
    for (const auto& [name, value] :
         {std::pair(
              "– computing", +[](const nlohmann::json& line) { return mean(line["compute_seconds"]); }),
          {"– loading data", +[](const nlohmann::json& line) { return mean(line["load_seconds"]); }},
          {"– gradient synchronisation",
           +[](const nlohmann::json& line) { return mean(line["gradient_sync_seconds"]); }},
          {"– waiting for others", +[](const nlohmann::json& line) { return mean(line["wait_seconds"]); }}}) {
      EXPECT_NEAR(*figure(comparison, name).values[i], expected(value), 1e-9) << name;
      sum += *figure(comparison, name).values[i];
    }
    EXPECT_NEAR(sum, seconds, 1e-9) << "the parts add up to the step";
  }
  EXPECT_THAT(figure(comparison, "a step").best(), ElementsAre(false, true));
  EXPECT_THAT(figure(comparison, "samples per second").best(), ElementsAre(false, true));
  EXPECT_THAT(figure(comparison, "workers").best(), ElementsAre(false, false));
  EXPECT_EQ(figure(comparison, "steps").texts[0], "200");
}

TEST_F(ComparisonTest, SaysWhatGotFasterAndWhy) {
  const Comparison comparison = compare();
  ASSERT_FALSE(comparison.sentences.empty());
  // With the equal split the worker of speed 1/4 takes 64 samples at 6 ms; balanced, all take 256 / 2.75 at 1.5 ms.
  EXPECT_THAT(comparison.sentences[0],
              AllOf(HasSubstr("dynamic takes 14"), HasSubstr("of equal (2."), HasSubstr("× as fast)"),
                    HasSubstr("less waiting for others"), HasSubstr("less computing"), Not(HasSubstr("more ")),
                    HasSubstr("Busy longest is quarter in equal, which takes 38"), HasSubstr("for 64 samples"),
                    HasSubstr("in dynamic")));
  EXPECT_THAT(comparison.sentences.back(), HasSubstr("test accuracy, which all of them reach, comes in dynamic after"));
}

TEST_F(ComparisonTest, ListsOnlyKeysThatDiffer) {
  const Comparison comparison = compare();
  EXPECT_THAT(comparison.differences, ElementsAre(ElementsAre("batch_split.mode", "equal", "dynamic")));
  dynamic_.job += "new_key: \"a: b\"\n";
  dynamic_.speeds = {1, 1};
  dynamic_.names = {"one", "two"};
  EXPECT_THAT(compare().differences,
              ElementsAre(ElementsAre("batch_split.mode", "equal", "dynamic"), ElementsAre("new_key", "–", "a: b"),
                          ElementsAre("(workers' devices)", _, _)));
}

TEST_F(ComparisonTest, RunsThatAreAlikeAreSaidToBe) {
  equal_.keeps_equal = false;
  equal_.mode = "dynamic";
  equal_.job = dynamic_.job;
  const Comparison comparison = compare();
  EXPECT_THAT(comparison.sentences[0], HasSubstr("dynamic is as fast as equal"));
  EXPECT_TRUE(comparison.differences.empty());
  EXPECT_THAT(comparison_text(comparison), HasSubstr("the jobs differ in nothing"));
}

TEST_F(ComparisonTest, OfScriptsWhatIsKnownIsCompared) {
  equal_.job = dynamic_.job = "";
  EXPECT_THAT(compare().differences, ElementsAre(ElementsAre("(batch_split)", "equal", "dynamic")));
  equal_.mode = "dynamic";
  const Comparison alike = compare();
  EXPECT_TRUE(alike.differences.empty());
  EXPECT_THAT(comparison_text(alike), HasSubstr("a script's settings are not recorded"));
}

TEST_F(ComparisonTest, OtherBatchesAreComparedByTheSample) {
  dynamic_.batch = 512;
  const Comparison comparison = compare();
  EXPECT_THAT(comparison.sentences[0], HasSubstr("for 1,000 samples instead of"));
  EXPECT_THAT(figure(comparison, "a step").best(), ElementsAre(false, false)) << "of other numbers of samples";
  EXPECT_THAT(figure(comparison, "samples per second").best(), ElementsAre(false, true));
  const double a = *figure(comparison, "a step").values[0] / 256, b = *figure(comparison, "a step").values[1] / 512;
  EXPECT_THAT(comparison.sentences[0], HasSubstr(fmt::format("({:.2f}× as fast)", a / b)));
}

TEST_F(ComparisonTest, RunsThatTrainSomethingElseAreSaidToAndNotMarked) {
  equal_.job = "model:\n  name: cnn\n  dtype: float32\ndata:\n  name: fashion-mnist\n  prefetch: 2\n";
  dynamic_.job = "model:\n  name: cnn\n  dtype: bfloat16\ndata:\n  name: fashion-mnist\n  prefetch: 4\n";
  EXPECT_THAT(compare().sentences[0], HasSubstr("dynamic takes 14")) << "these are ways to train the same";
  dynamic_.job = "model:\n  name: mlp\ndata:\n  name: mnist\n";
  const Comparison comparison = compare();
  EXPECT_THAT(
      comparison.sentences[0],
      HasSubstr(
          "The runs do not train the same, as their models (cnn, mlp) and their data (fashion-mnist, mnist) differ: "));
  EXPECT_THAT(comparison.sentences[1], AllOf(HasSubstr("dynamic takes 14"), Not(HasSubstr("fast"))));
  for (const ComparedFigure& one : comparison.figures) {
    EXPECT_THAT(one.best(), ElementsAre(false, false)) << one.name;
  }
  EXPECT_THAT(comparison_text(comparison), Not(HasSubstr("*")));
}

TEST_F(ComparisonTest, OfAScriptTheJobIsNotKnown) {
  dynamic_.job = "";
  const Comparison comparison = compare();
  EXPECT_THAT(comparison.differences, ElementsAre(ElementsAre("(batch_split)", "equal", "dynamic")));
  EXPECT_THAT(comparison.sentences[0], HasSubstr("dynamic takes 14"));
}

TEST_F(ComparisonTest, WhatOneRunAloneHasIsNotTheBest) {
  EXPECT_THAT((ComparedFigure{"", "", {0.5, std::nullopt}, {"0.5", "–"}, ComparedFigure::Better::kMore}.best()),
              ElementsAre(false, false));
}

TEST_F(ComparisonTest, ThePageShowsItAllAndEscapesNames) {
  dynamic_.names[0] = "<script>alert(1)</script>";
  compare();
  ASSERT_TRUE(write_file(folder_.path / "equal" / "report.html", "page"));
  const auto comparison = compare_runs({folder_.path / "equal", folder_.path / "dynamic"});
  const std::string html = comparison_page(*comparison, folder_.path / "pages");
  for (const char* text : {"What got faster, and why", "href=\"../equal/report.html\"", "What the jobs differ in",
                           "Loss against steps", "Loss against time", "Accuracy against steps", "Where the time goes",
                           "<span class=\"best\">", "batch_split.mode"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, Not(HasSubstr("href=\"../dynamic"))) << "it has no page";
  const std::string text = comparison_text(*comparison);
  for (const char* words : {"equal", "samples per second", " *", "dynamic takes", "batch_split.mode"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
}

TEST_F(ComparisonTest, RefusesWhatCannotBeCompared) {
  compare();
  const auto message = [](const std::vector<std::filesystem::path>& folders) {
    const auto comparison = compare_runs(folders);
    return comparison ? "no error" : comparison.error().message;
  };
  EXPECT_THAT(message({folder_.path / "equal"}), HasSubstr("accepted: two runs or more"));
  EXPECT_THAT(message({folder_.path / "equal", folder_.path / "." / "equal"}), HasSubstr("is named twice"));
  EXPECT_THAT(message({folder_.path / "equal", folder_.path / "nowhere"}), HasSubstr("is not a run directory"));
  std::filesystem::create_directories(folder_.path / "other");
  std::filesystem::rename(folder_.path / "dynamic", folder_.path / "other" / "equal");
  const auto both = compare_runs({folder_.path / "equal", folder_.path / "other" / "equal"});
  ASSERT_TRUE(both);
  EXPECT_EQ(both->runs[1].name, (folder_.path / "other" / "equal").string()) << "two folders of one name";
}

}  // namespace
}  // namespace motley::report
