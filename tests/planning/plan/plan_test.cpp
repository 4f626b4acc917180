// plan.json read back to what was written, edited as a person would, and refused with the field and what would be
// accepted; objectives in words.
#include "motley/planning/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "tests/temporary_folder.h"

namespace motley::planning {
namespace {

using ::testing::HasSubstr;

Plan example() {
  Plan plan;
  plan.model = "example";
  plan.layers = {"embedding", "fc1", "fc2"};
  plan.batch = 64;
  plan.micro_batches = 8;
  plan.stages = {{.first_layer = 0,
                  .last_layer = 0,
                  .replicas = {{"cpu", 6, 1.0 / 6}},
                  .gradient_sync = GradientSync::kParameterServer},
                 {.first_layer = 1, .last_layer = 2, .replicas = {{"gpu", 1, 1.0}}, .recompute = true}};
  plan.cost_model = "pipeline";
  plan.method = "exact";
  plan.objective = "lowest cost";
  plan.predicted = {0.123, 520.3, 2.66, 0.1 + 0.2};
  return plan;
}

// The example's text with one part of it replaced.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = to_json(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error_message(const std::string& text) {
  const auto plan = parse_plan(text, "plan.json");
  return plan ? "accepted" : plan.error().message;
}

TEST(PlanFile, ReadsBackEqual) {
  Plan plan = example();
  EXPECT_EQ(*parse_plan(to_json(plan), "plan.json"), plan);
  plan.bound = 1.0 / 3;
  plan.measured = {.step_seconds = 0.1 / 3, .steps = 12};
  plan.schedule = PipelineSchedule::kGPipe;
  plan.parameter_shapes = {"", "8x4, 8", "2x8, 2"};
  EXPECT_EQ(*parse_plan(to_json(plan), "plan.json"), plan);

  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "plan.json";
  ASSERT_TRUE(write_file(file, to_json(plan)));
  EXPECT_EQ(*read_plan(file), plan);
  std::filesystem::remove(file);
  EXPECT_THAT(read_plan(file).error().message, HasSubstr(file.string()));
}

TEST(PlanFile, RandomPlansReadBackEqual) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    Plan plan = example();
    plan.layers.clear();
    plan.stages.clear();
    plan.batch = static_cast<std::int64_t>(1 + random.below(1000));
    plan.micro_batches = static_cast<std::int64_t>(1 + random.below(static_cast<std::uint64_t>(plan.batch)));
    plan.predicted = {random.uniform(), 1e6 * random.uniform(), random.exponential(10), 1e-9 * random.uniform()};
    while (plan.stages.empty() || random.below(4) != 0) {
      Stage stage{.first_layer = static_cast<int>(plan.layers.size())};
      for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
        plan.layers.push_back(fmt::format("läyer \"{}\"", plan.layers.size()));
      }
      stage.last_layer = static_cast<int>(plan.layers.size()) - 1;
      const auto count = static_cast<std::int64_t>(1 + random.below(9));
      const double share = random.uniform();
      stage.replicas = {{"a", count, (1 - share) / static_cast<double>(count)}, {"b", 1, share}};
      stage.gradient_sync = random.below(2) == 0 ? GradientSync::kRing : GradientSync::kParameterServer;
      stage.recompute = random.below(2) == 0;
      plan.stages.push_back(stage);
    }
    const auto again = parse_plan(to_json(plan), "plan.json");
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, plan);
  }
}

TEST(PlanFile, IsEditableByHand) {
  // A cut is moved by writing another layer's name, or its number; a count without touching shares.
  std::string text = edited(R"("last_layer": "embedding")", R"("last_layer": "fc1")");
  text.replace(text.find(R"("first_layer": "fc1")"), 20, R"("first_layer": 2)");
  text.replace(text.find(R"("count": 6)"), 10, R"("count": 5)");
  const auto plan = parse_plan(text, "plan.json");
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->stages[0].last_layer, 1);
  EXPECT_EQ(plan->stages[1].first_layer, 2);
  EXPECT_EQ(plan->stages[0].replicas[0].share, 0.2);

  const auto least = parse_plan(R"({"version": 2, "model": "m", "layers": ["a"], "global_batch_size": 8,
      "stages": [{"first_layer": "a", "last_layer": "a", "replicas": [{"type": "gpu"}]}]})",
                                "plan.json");
  ASSERT_TRUE(least) << least.error().message;
  EXPECT_EQ(least->micro_batches, 1);
  EXPECT_EQ(least->stages[0].replicas[0], (Replicas{"gpu", 1, 1.0}));
}

TEST(PlanFile, RefusesWithFieldValueAndWhatIsAccepted) {
  EXPECT_THAT(error_message("{"), HasSubstr("plan.json: this is not JSON"));
  EXPECT_THAT(error_message("[]"), HasSubstr("plan.json: the whole is []; accepted is an object"));
  EXPECT_THAT(error_message(edited(R"("version": 2)", R"("version": 3)")), HasSubstr("'version' is 3; accepted is 2"));
  EXPECT_THAT(error_message(edited(R"("version": 2)", R"("version": 1)")),
              HasSubstr("'version' is 1; accepted is 2, in which batch is now global_batch_size, "));
  EXPECT_THAT(error_message(edited(R"("global_batch_size": 64)", R"("global_batch_sizes": 64)")),
              HasSubstr("field 'global_batch_size' is missing"));
  EXPECT_THAT(error_message(edited(R"("method")", R"("metod")")), HasSubstr("did you mean 'method'?"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 6, "cores": 3)")),
              HasSubstr("unknown field 'stages[0].replicas[0].cores'"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 6, "count": 7)")),
              HasSubstr("field \"count\" is given twice"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 0)")),
              HasSubstr("field 'stages[0].replicas[0].count' is 0"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 1.5)")),
              HasSubstr("count' is 1.5; accepted is an integer"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 18446744073709551615)")),
              HasSubstr("count' is 184467"));
  EXPECT_THAT(error_message(edited(R"("count": 6)", R"("count": 6, "batch_fraction": 0.5)")),
              HasSubstr("field 'stages[0].replicas' is of fractions whose sum (count times batch_fraction) is 3; "
                        "accepted is a sum of 1"));
  EXPECT_THAT(error_message(edited(R"("micro_batches": 8)", R"("micro_batches": 65)")),
              HasSubstr("field 'micro_batches' is 65; accepted is an integer from 1 to 64"));
  EXPECT_THAT(error_message(edited(R"("1f1b")", R"("zigzag")")),
              HasSubstr(R"(field 'pipeline_schedule' is "zigzag"; accepted is "1f1b", "gpipe")"));
  EXPECT_THAT(error_message(edited(R"("recompute": true)", R"("recompute": 1)")),
              HasSubstr("field 'stages[1].recompute' is 1"));
  EXPECT_THAT(
      error_message(edited(R"("parameter-server")", R"("none")")),
      HasSubstr(
          "field 'stages[0].gradient_sync' is 'none'; accepted is 'ring' or 'parameter-server', as the stage has 6"));
  EXPECT_THAT(
      error_message(edited(R"("global_batch_size": 64)", R"("parameter_shapes": ["8x4"], "global_batch_size": 64)")),
      HasSubstr("field 'parameter_shapes' is an array of 1; accepted is an array of 3, one for each layer, or none"));
  EXPECT_THAT(error_message(edited(R"("throughput": 520.3)", R"("throughput": -1)")),
              HasSubstr("field 'predicted.throughput' is -1; accepted is a finite number, 0 or more"));
}

TEST(PlanFile, RefusesGapsOverlapsAndUnknownLayers) {
  EXPECT_THAT(
      error_message(edited(R"("last_layer": "embedding")", R"("last_layer": "embeding")")),
      HasSubstr(R"(field 'stages[0].last_layer' is "embeding"; accepted is a name of 'layers', or an integer from 0)"));
  EXPECT_THAT(
      error_message(edited(R"("last_layer": "embedding")", R"("last_layer": 3)")),
      HasSubstr("field 'stages[0].last_layer' is 3; accepted is a name of 'layers', or an integer from 0 to 2"));
  EXPECT_THAT(
      error_message(edited(R"("first_layer": "fc1")", R"("first_layer": "fc2")")),
      HasSubstr("field 'stages[1].first_layer' is 2 ('fc2'); accepted is 1 ('fc1'), the first layer that no stage"));
  EXPECT_THAT(error_message(edited(R"("last_layer": "embedding")", R"("last_layer": "fc1")")),
              HasSubstr("field 'stages[1].first_layer' is 1 ('fc1'); accepted is 2 ('fc2')"));
  EXPECT_THAT(error_message(edited(R"("last_layer": "fc2")", R"("last_layer": "fc1")")),
              HasSubstr("field 'stages' is done after layer 1 ('fc1'); accepted is stages up to layer 2 ('fc2')"));
  EXPECT_THAT(error_message(edited(R"("last_layer": "fc2")", R"("last_layer": "embedding")")),
              HasSubstr("field 'stages[1].last_layer' is 0 ('embedding'); accepted is 1 ('fc1') to 2 ('fc2')"));
  EXPECT_THAT(error_message(edited(R"("fc1",)", R"("fc2",)")),
              HasSubstr("field 'layers[2]' is \"fc2\"; accepted is a name that no"));
}

TEST(Objectives, InWords) {
  EXPECT_EQ(describe({}), "lowest cost");
  EXPECT_EQ(describe({.min_throughput = 20000}), "lowest cost with at least 20,000 samples/s");
  EXPECT_EQ(describe({.criterion = Criterion::kMaxThroughput, .max_cost = 500, .max_hourly_cost = 12.5}),
            "highest throughput with at most 500 in all and at most 12.5 an hour");
  EXPECT_EQ(describe({.criterion = Criterion::kMinStepTime}), "shortest step time");
}

TEST(Objectives, RefuseWhatNoPlanCouldMean) {
  EXPECT_TRUE(validate(Objective{}));
  EXPECT_THAT(validate(Objective{.min_throughput = -1}).error().message, HasSubstr("min_throughput is -1"));
  EXPECT_FALSE(validate(Objective{.min_throughput = INFINITY}));
  EXPECT_FALSE(validate(Objective{.max_cost = 0}));
  EXPECT_THAT(validate(Objective{.max_hourly_cost = std::nan("")}).error().message,
              HasSubstr("max_hourly_cost is nan; accepted: a number above 0"));
}

}  // namespace
}  // namespace motley::planning
