// Workers that turn out slower than the profile says get a plan for their speeds; all others keep theirs.
#include "motley/train/loop/replanner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace motley::train {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 8;
constexpr double kForward = 1e-3;  // seconds of a sample in a layer; backward takes twice as long

model::Profile profile() {
  model::Profile profile;
  profile.graph.name = "toy";
  model::DeviceProfile device;
  device.type = "unit";
  for (int layer = 0; layer < kLayers; ++layer) {
    profile.graph.layers.push_back({.name = fmt::format("layer-{}", layer)});
    if (layer > 0) profile.graph.layers.back().inputs = {layer - 1};
    profile.graph.layers.back().parameters = 100;
    device.layers.push_back({{0, kForward}, {0, 2 * kForward}, {}});
  }
  profile.devices = {device};
  return profile;
}

// Two stages of as many layers on one worker each.
StageLayout two_stages() {
  planning::Plan plan;
  plan.model = "toy";
  for (int layer = 0; layer < kLayers; ++layer) plan.layers.push_back(fmt::format("layer-{}", layer));
  plan.batch = 64;
  plan.micro_batches = 8;
  plan.cost_model = "pipeline";
  plan.stages = {{0, 3, {{"unit", 1, 1}}}, {4, 7, {{"unit", 1, 1}}}};
  return StageLayout(plan);
}

// What the ranks of a layout take for a step if each is so many times slower than the profile says.
std::vector<data::Observation> make_step(const StageLayout& layout, const std::vector<double>& slowdowns) {
  std::vector<data::Observation> ranks;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const auto samples = layout.samples(rank, {0, 64});
    const int layers = layout.stage(rank).last_layer - layout.stage(rank).first_layer + 1;
    ranks.push_back({samples, samples * layers * 3 * kForward * slowdowns[static_cast<std::size_t>(rank)], 0});
  }
  return ranks;
}

struct Watched {
  bool searched = false;
  std::optional<Replanner::Move> move;
};

Watched watch(Replanner& replanner, const StageLayout& layout, const std::vector<double>& slowdowns,
              std::int64_t steps_left) {
  Watched watched;
  for (std::size_t step = 0; step < Replanner::kSpeedSteps; ++step) {
    EXPECT_FALSE(replanner.is_searching()) << "before there are enough steps";
    replanner.observe(make_step(layout, slowdowns), steps_left);
  }
  watched.searched = replanner.is_searching();
  while (replanner.is_searching() && !watched.move) {
    watched.move = replanner.next_move();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return watched;
}

TEST(Replanner, GivesASlowWorkerLess) {
  StageLayout layout = two_stages();
  auto replanner = Replanner::create(profile(), {}, layout);
  ASSERT_TRUE(replanner) << replanner.error().message;
  auto move = watch(*replanner, layout, {3, 1}, 1000).move;
  ASSERT_TRUE(move);
  EXPECT_THAT(move->reason, HasSubstr("worker 0 takes 3.00 times as long"));
  ASSERT_TRUE(planning::validate(move->plan, "the new plan"));
  StageLayout next(move->plan, move->ranks);
  ASSERT_EQ(next.ranks(), 2);
  const auto work = [&](int rank) {
    const planning::Stage& stage = next.stage(rank);
    return next.share(rank) * (stage.last_layer - stage.first_layer + 1);
  };
  // Of eight layers of all samples, a worker of a third of the other's speed should do two; whole layers come close.
  EXPECT_NEAR(work(0), 2, 0.5);
  EXPECT_NEAR(work(1), 6, 0.5);
  EXPECT_EQ(next.device_type(0), "unit");

  // Once it has moved, speeds that stay what they are move nothing.
  replanner->moved(next, 0.1);
  EXPECT_FALSE(watch(*replanner, next, {3, 1}, 1000).searched);
  // When the worker is as fast as it was, that is looked at again.
  replanner->moved(next, 0.1);
  EXPECT_TRUE(watch(*replanner, next, {1, 1}, 1000).searched);
}

TEST(Replanner, StaysWhereMovingDoesNotPay) {
  const StageLayout layout = two_stages();
  for (const auto& [name, slowdowns, steps_left, searches] :
       {std::tuple{"all as the profile says", std::vector<double>{1, 1}, 1000, false},
        std::tuple{"a little", std::vector<double>{1.05, 1}, 1000, false},
        std::tuple{"at the end", std::vector<double>{3, 1}, 1, true}}) {
    auto replanner = Replanner::create(profile(), {}, layout);
    ASSERT_TRUE(replanner);
    const Watched watched = watch(*replanner, layout, slowdowns, steps_left);
    EXPECT_EQ(watched.searched, searches) << name;
    EXPECT_FALSE(watched.move) << name << ": " << (watched.move ? watched.move->reason : "");
  }
}

TEST(Replanner, LooksOnceWhereAllAreSlowerAlike) {
  const StageLayout layout = two_stages();
  auto replanner = Replanner::create(profile(), {}, layout);
  ASSERT_TRUE(replanner);
  EXPECT_TRUE(watch(*replanner, layout, {1.5, 1.5}, 1000).searched);
  replanner->moved(layout, 0.1);
  EXPECT_FALSE(watch(*replanner, layout, {1.5, 1.5}, 1000).searched);
}

TEST(Replanner, RefusesAProfileOfSomethingElse) {
  const StageLayout layout = two_stages();
  model::Profile other = profile();
  other.graph.layers[2].name = "another";
  const auto layers = Replanner::create(other, {}, layout);
  ASSERT_FALSE(layers);
  EXPECT_THAT(layers.error().message, HasSubstr("other layers than the plan"));
  other = profile();
  other.devices[0].type = "another";
  const auto types = Replanner::create(other, {}, layout);
  ASSERT_FALSE(types);
  EXPECT_THAT(types.error().message, HasSubstr("'unit'"));
}

}  // namespace
}  // namespace motley::train
