// What a profile says of a job that trains its model.
#include "motley/app/profiled_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::app {
namespace {

TEST(ProfiledJob, HasTheTimesAndTheGradientOfItsProfile) {
  const TemporaryFolder folder;
  model::Graph graph;
  graph.name = graph.source = "two layers";
  graph.layers = {{.name = "a", .kind = model::LayerKind::kFullyConnected, .parameters = 100, .activation_bytes = 4},
                  {.name = "b", .kind = model::LayerKind::kFullyConnected, .inputs = {0}, .parameters = 50}};
  model::Profile profile{graph, 8, {}, {}};
  const model::LayerTime layer{{0.01, 0.001}, {0.02, 0.002}, {}};  // 0.054 s at 8 samples
  const model::LayerTime slower{{0.02, 0.002}, {0.04, 0.004}, {}};
  profile.devices.push_back({.type = "new", .rule = "made up", .fractions_rule = "made up", .layers = {layer, layer}});
  profile.devices.push_back(
      {.type = "old", .rule = "made up", .fractions_rule = "made up", .layers = {slower, slower}});
  ASSERT_TRUE(write_file(folder.path / "profile.json", model::to_json(profile)));
  const auto job = read_profiled_job(folder.path / "profile.json");
  ASSERT_TRUE(job) << job.error().message;
  EXPECT_NEAR(job->compute_seconds, 0.108, 1e-12);
  EXPECT_EQ(job->gradient_bytes, 600);
  ASSERT_EQ(job->speeds.size(), 2U);
  EXPECT_EQ(job->speeds[0], (std::pair<std::string, double>("new", 1)));
  EXPECT_EQ(job->speeds[1].first, "old");
  EXPECT_DOUBLE_EQ(job->speeds[1].second, 0.5);
  EXPECT_FALSE(read_profiled_job(folder.path / "other.json"));
}

}  // namespace
}  // namespace motley::app
