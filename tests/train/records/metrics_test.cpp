// Lines of metrics.jsonl read back as they were written, to the byte; damaged ones are named by line and field.
#include "motley/train/records/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace motley::train {
namespace {

using testing::HasSubstr;

// As the training loop writes them.
constexpr const char* kLines[] = {
    R"({"step":12,"epoch":0,"time":3.21,"loss":1.2,"accuracy":0.61,"learning_rate":0.05,"step_seconds":0.141,)"
    R"("mode":"dynamic","baseline":false,"batch_split":[93,23],"samples":[93,23],"compute_seconds":[0.132,0.13],)"
    R"("load_seconds":[0.001,0.001],"gradient_sync_seconds":[0.004,0.004],"wait_seconds":[0.0,0.003],)"
    R"("memory_bytes":[310000000.0,310000000.0],"staleness":[1,0],"data_wait_seconds":[0.5,0.25],)"
    R"("sent_bytes":[0.0,0.0],"embedding":{"pulled_bytes":[184320.0,0.0],"pushed_bytes":[181000.0,0.0],)"
    R"("wait_seconds":[0.002,0.0],"needed":[5120.0,0.0],"cached":[1900.0,0.0],"prefetched":[3220.0,0.0]},)"
    R"("predicted_seconds":0.139,"bound_seconds":0.1,"equal_seconds":0.2,"decision":"shares moved"})",
    R"({"step":13,"epoch":1,"time":3.5,"loss":null,"mean_absolute_error":0.5,"learning_rate":0.05,)"
    R"("step_seconds":0.1,"mode":"equal","baseline":true,"batch_split":[64],"samples":[64],"compute_seconds":[0.1],)"
    R"("load_seconds":[0.0],"gradient_sync_seconds":[0.0],"wait_seconds":[0.0],"memory_bytes":[1.0],)"
    R"("sent_bytes":[0.0]})",
    R"({"step":234,"epoch":1,"time":40.1,"evaluation":{"loss":0.31,"accuracy":0.886,"auc":0.9}})",
    R"({"step":250,"time":42.7,"event":"checkpoint","text":"step 250"})",
    R"({"step":250,"epoch":1,"time":42.7,"event":"audit","text":"all once","samples_lost_or_duplicated":0})"};

TEST(Metrics, LinesReadBackToTheByte) {
  for (const char* line : kLines) {
    const auto read = parse_metrics_line(line);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(to_json(*read), line);
  }
}

TEST(Metrics, AreSortedByKindAndReadIntoTheirPlaces) {
  std::string text;
  for (const char* line : kLines) text += std::string(line) + "\n";
  const auto metrics = parse_metrics(text, "metrics.jsonl");
  ASSERT_TRUE(metrics) << metrics.error().message;
  EXPECT_FALSE(metrics->is_torn);
  ASSERT_EQ(metrics->steps.size(), 2u);
  EXPECT_EQ(metrics->steps[0].samples, (std::vector<std::int64_t>{93, 23}));
  EXPECT_EQ(metrics->steps[0].embedding->cached, (std::vector<double>{1900, 0}));
  EXPECT_EQ(metrics->steps[0].accuracy, 0.61);
  EXPECT_TRUE(std::isnan(metrics->steps[1].loss));
  EXPECT_TRUE(metrics->steps[1].baseline);
  EXPECT_FALSE(metrics->steps[1].embedding);
  ASSERT_EQ(metrics->evaluations.size(), 1u);
  EXPECT_EQ(metrics->evaluations[0].evaluation.auc, 0.9);
  ASSERT_EQ(metrics->events.size(), 2u);
  EXPECT_EQ(metrics->events[0].text, "step 250");
  EXPECT_EQ(metrics->events[1].samples_lost_or_duplicated, 0);
}

TEST(Metrics, UnknownFieldsAreIgnoredAndOldLinesRead) {
  const auto read = parse_metrics_line(
      R"({"step":1,"time":1,"loss":1,"step_seconds":1,"mode":"equal","batch_split":[3],"news":{"a":[1]}})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(std::get<StepMetrics>(*read).samples, std::vector<std::int64_t>{3});
}

TEST(Metrics, StepsDoneAgainCountOnceAndATornEndIsLeftOut) {
  const std::string step(kLines[0]);
  const std::string text = step + "\n" + kLines[1] + "\n" + step + "\n" + kLines[2] + "\n" + step.substr(0, 40);
  const auto metrics = parse_metrics(text, "metrics.jsonl");
  ASSERT_TRUE(metrics) << metrics.error().message;
  EXPECT_TRUE(metrics->is_torn);
  ASSERT_EQ(metrics->steps.size(), 1u);
  EXPECT_EQ(metrics->steps[0].step, 12);
}

TEST(Metrics, DamageIsNamedByLineAndField) {
  const auto message = [](const std::string& line) {
    const auto metrics = parse_metrics(std::string(kLines[3]) + "\n" + line + "\n", "run/metrics.jsonl");
    return metrics ? "no error" : metrics.error().message;
  };
  EXPECT_THAT(message("{\"step\":"), HasSubstr("'run/metrics.jsonl' line 2: this is not JSON"));
  EXPECT_THAT(message("{}"), HasSubstr("line 2: field 'step' is missing"));
  EXPECT_THAT(message(R"({"step":1,"step":1})"), HasSubstr("\"step\" is given twice"));
  EXPECT_THAT(message(R"({"step":1,"evaluation":{"auc":"high"}})"), HasSubstr("'evaluation.auc' is \"high\""));
  EXPECT_THAT(message(R"({"step":1,"time":1,"event":5})"), HasSubstr("'event' is 5; accepted is a text"));
}

}  // namespace
}  // namespace motley::train
