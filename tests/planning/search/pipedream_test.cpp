// PipeDream's dynamic program: its published predictions, enumeration of all plans of small chains, and the states of
// graphs with branches.
#include "motley/planning/search/pipedream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "motley/base/random.h"
#include "motley/model/profile.h"
#include "motley/planning/search/planner.h"

namespace motley::planning {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kTenGigabits = 1.25e9;  // bytes a second

std::filesystem::path profiles() {
  const char* const variable = std::getenv("MOTLEY_SHARED_DATA");
  return std::filesystem::path(variable != nullptr ? variable : MOTLEY_SHARED_DATA) / "profiles/pipedream";
}

std::vector<int> replicas(const PipedreamPlan& plan) {
  std::vector<int> all;
  for (const PipedreamStage& stage : plan.stages) {
    all.push_back(stage.replicas);
  }
  return all;
}

struct Published {
  const char* model;
  int machines;
  double speedup;
  std::vector<int> replicas;
  double data_parallel;
};

class PublishedPlans : public testing::TestWithParam<Published> {};

TEST_P(PublishedPlans, AreReproduced) {
  const Published& published = GetParam();
  const auto file = profiles() / fmt::format("{}.txt", published.model);
  if (!std::filesystem::exists(file)) {
    GTEST_SKIP() << "needs " << file;
  }
  const auto profile = model::read_pipedream(file, 64, "gpu");
  ASSERT_TRUE(profile) << profile.error().message;
  const auto graph = pipedream_graph(*profile, kTenGigabits);
  ASSERT_TRUE(graph) << graph.error().message;
  const PipedreamPlan plan = pipedream_plans(graph->states, published.machines).back();
  EXPECT_NEAR(pipedream_speedup(graph->states, plan) / published.speedup, 1, 0.01);
  EXPECT_EQ(replicas(plan), published.replicas);
  EXPECT_NEAR(data_parallel_speedup(graph->states, published.machines) / published.data_parallel, 1, 0.01);

  const PipedreamPlan exact = exact_pipedream_plan(graph->states, published.machines);
  EXPECT_LE(exact.seconds, plan.seconds * (1 + 1e-12));
}

INSTANTIATE_TEST_SUITE_P(
    Profiles, PublishedPlans,
    testing::Values(Published{"vgg16", 4, 3.81, {3, 1}, 1.34}, Published{"vgg16", 16, 12.27, {13, 2, 1}, 4.61},
                    Published{"resnet50", 4, 2.92, {2, 2}, 2.58}, Published{"resnet50", 16, 10.11, {8, 5, 3}, 9.46},
                    Published{"alexnet", 4, 2.63, {3, 1}, 0.51}, Published{"alexnet", 16, 5.65, {15, 1}, 1.67}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.model, info.param.machines); });

TEST(ProfilesOfPipedream, AreAllPlannedAndExactIsNeverWorse) {
  if (!std::filesystem::exists(profiles())) {
    GTEST_SKIP() << "needs " << profiles();
  }
  for (const auto& file : std::filesystem::directory_iterator(profiles())) {
    const auto profile = model::read_pipedream(file.path(), 64, "gpu");
    ASSERT_TRUE(profile) << profile.error().message;
    const auto graph = pipedream_graph(*profile, kTenGigabits);
    ASSERT_TRUE(graph) << graph.error().message;
    for (const int machines : {1, 2, 3, 8}) {
      const PipedreamPlan plan = pipedream_plans(graph->states, machines).back();
      EXPECT_DOUBLE_EQ(plan.seconds, pipedream_seconds(graph->states, plan.stages));
      EXPECT_LE(exact_pipedream_plan(graph->states, machines).seconds, plan.seconds * (1 + 1e-12)) << file.path();
    }
  }
}

PipedreamStates random_chain(int layers, std::uint64_t seed) {
  Random random(seed);
  PipedreamStates states;
  states.gradient_sync_bytes_per_second = states.activation_bytes_per_second = 1e9;
  double seconds = 0;
  double parameter_bytes = 0;
  for (int i = 0; i <= layers; ++i) {
    states.seconds.push_back(seconds);
    states.parameter_bytes.push_back(parameter_bytes);
    states.output_bytes.push_back(i == 0 || i == layers ? 0 : 2e7 * random.uniform());
    std::vector<int>& inside = states.inside.emplace_back();
    for (int j = 0; j < i; ++j) {
      inside.push_back(j);
    }
    seconds += 0.1 * random.uniform();
    parameter_bytes += random.uniform() < 0.5 ? 1e7 * random.uniform() : 2e8 * random.uniform();
  }
  return states;
}

// The least time of all plans from a state on with exactly `machines`.
double enumerate(const PipedreamStates& states, std::vector<PipedreamStage>& stages, int from, int machines) {
  const int last = static_cast<int>(states.seconds.size()) - 1;
  if (from == last) {
    return machines == 0 ? pipedream_seconds(states, stages) : INFINITY;
  }
  double least = INFINITY;
  for (int to = from + 1; to <= last; ++to) {
    for (int replicas = 1; replicas <= machines; ++replicas) {
      stages.push_back({from, to, replicas});
      least = std::min(least, enumerate(states, stages, to, machines - replicas));
      stages.pop_back();
    }
  }
  return least;
}

TEST(PipedreamPlans, EqualEnumerationOnSmallChains) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const PipedreamStates states = random_chain(2 + static_cast<int>(seed % 5), seed);
    const std::vector<PipedreamPlan> plans = pipedream_plans(states, 5);
    ASSERT_EQ(plans.size(), 5U);
    double with_at_most = INFINITY;
    for (int machines = 1; machines <= 5; ++machines) {
      std::vector<PipedreamStage> stages;
      const double least = enumerate(states, stages, 0, machines);
      const PipedreamPlan& plan = plans[static_cast<std::size_t>(machines - 1)];
      EXPECT_DOUBLE_EQ(plan.seconds, least) << "seed " << seed;
      EXPECT_DOUBLE_EQ(pipedream_seconds(states, plan.stages), least);
      with_at_most = std::min(with_at_most, least);
      EXPECT_NEAR(exact_pipedream_plan(states, machines).seconds / with_at_most, 1, 1e-9) << "seed " << seed;
    }
  }
}

// By hand: two layers of 1 s; the second has 10 bytes of parameters; 2 bytes go between them; 1 byte a second.
TEST(PipedreamPlans, FollowTheFormula) {
  PipedreamStates states{.seconds = {0, 1, 2},
                         .parameter_bytes = {0, 0, 10},
                         .output_bytes = {0, 2, 0},
                         .inside = {{}, {0}, {0, 1}},
                         .gradient_sync_bytes_per_second = 1,
                         .activation_bytes_per_second = 1};
  EXPECT_DOUBLE_EQ(pipedream_seconds(states, {{0, 2, 1}}), 2);
  EXPECT_DOUBLE_EQ(pipedream_seconds(states, {{0, 2, 2}}), (2 + 4.0 * 10 / 2) / 2);
  EXPECT_DOUBLE_EQ(pipedream_seconds(states, {{0, 1, 1}, {1, 2, 1}}), 2 * 2);  // the transfer is the slowest
  EXPECT_DOUBLE_EQ(data_parallel_speedup(states, 2), 2.0 / 11);
  states.output_bytes[1] = 0.1;
  const PipedreamPlan plan = pipedream_plans(states, 2).back();
  EXPECT_THAT(plan.stages, ElementsAre(PipedreamStage{0, 1, 1}, PipedreamStage{1, 2, 1}));
  EXPECT_DOUBLE_EQ(pipedream_speedup(states, plan), 2);
}

// An input, then a diamond a -> (b, c) -> d, with an idle layer that reads a and that nobody reads.
model::Profile diamond() {
  model::Profile profile;
  profile.graph.name = "diamond";
  profile.batch = 2;
  model::DeviceProfile& device = profile.devices.emplace_back();
  const auto add = [&](const char* name, std::vector<int> inputs, double seconds, double parameters, double bytes) {
    model::Layer layer;
    layer.name = name;
    layer.inputs = std::move(inputs);
    layer.parameters = parameters;
    layer.activation_bytes = bytes;
    profile.graph.layers.push_back(layer);
    device.layers.push_back({.forward = {0, seconds}, .backward = {seconds, 0}});
  };
  add("input", {}, 100, 0, 1000);
  profile.graph.layers.back().kind = model::LayerKind::kInput;
  add("a", {0}, 1, 1, 1);
  add("b", {1}, 10, 2, 10);
  add("c", {1}, 20, 4, 100);
  add("idle", {1}, 0, 0, 7);
  add("d", {2, 3}, 3, 8, 5);
  return profile;
}

TEST(PipedreamGraph, HasEverySetOfLayersThatIsClosedUnderInputs) {
  const auto graph = pipedream_graph(diamond(), 1e9);
  ASSERT_TRUE(graph) << graph.error().message;
  using Members = std::vector<int>;
  EXPECT_THAT(graph->members,
              ElementsAre(Members{}, Members{1}, Members{1, 2}, Members{1, 3}, Members{1, 2, 3}, Members{1, 2, 3, 5}));
  const PipedreamStates& states = graph->states;
  EXPECT_THAT(states.seconds, ElementsAre(0, 3, 33, 63, 93, 102));  // seconds * (batch + 1)
  EXPECT_THAT(states.parameter_bytes, ElementsAre(0, 4, 12, 20, 28, 60));
  EXPECT_THAT(states.output_bytes, ElementsAre(0, 2, 22, 202, 220, 0));  // a is still read until b and c are both in
  EXPECT_THAT(states.inside, ElementsAre(Members{}, Members{0}, Members{0, 1}, Members{0, 1}, Members{0, 1, 2, 3},
                                         Members{0, 1, 2, 3, 4}));
}

TEST(PipedreamGraph, RefusesTooManyBranches) {
  model::Profile profile = diamond();
  for (int i = 0; i < 13; ++i) {
    profile.graph.layers.push_back(profile.graph.layers[2]);
    profile.devices[0].layers.push_back(profile.devices[0].layers[2]);
  }
  const auto graph = pipedream_graph(profile, 1e9);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(graph.error().message, HasSubstr("diamond has more than 5000"));
}

TEST(PipedreamGraph, RefusesAProfileWithoutDevice) {
  model::Profile profile = diamond();
  profile.devices.clear();
  const auto graph = pipedream_graph(profile, 1e9);
  ASSERT_FALSE(graph);
  EXPECT_THAT(graph.error().message, HasSubstr("has no device"));
}

// A step exchanges gradients once, however many micro-batches it has: two replicas then pay.
TEST(PipedreamPlanner, CountsGradientSynchronisationOnceAStep) {
  Problem problem;
  problem.model = "one";
  problem.cost_model = CostModel::kPipeline;
  problem.types = {{.name = "gpu", .count = 2, .bytes_per_second = 1e6}};
  problem.links = {{.bytes_per_second = 1e6}};
  problem.layers = {{.name = "layer", .parameter_bytes = 1e6}};
  problem.table = {{.forward = {0, 0.1}, .backward = {0, 0.2}}};
  problem.cut_bytes = {0, 0};
  problem.batch = 64;
  problem.micro_batches = 16;
  const auto answer = plan_pipedream({.problem = problem, .objective = {.criterion = Criterion::kMinStepTime}});
  ASSERT_TRUE(answer && answer->best);
  ASSERT_EQ(answer->best->size(), 1u);
  EXPECT_EQ(answer->best->front().replicas, 2);
  // 64 samples at 0.3 s on two, and 1 MB once over a ring of two at 1 MB/s.
  EXPECT_NEAR(answer->evaluation.step_seconds, 64 * 0.3 / 2 + 1, 1e-9);
}

}  // namespace
}  // namespace motley::planning
