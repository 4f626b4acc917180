// Problems made of a profile and a cluster, and what impossible ones are told.
#include "motley/planning/cost/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {
namespace {

using ::testing::HasSubstr;

model::Profile profile_of_two_layers() {
  model::Profile profile;
  profile.graph = {.name = "two",
                   .input_bytes = 100,
                   .layers = {{.name = "embedding",
                               .kind = model::LayerKind::kEmbedding,
                               .activation_bytes = 400,
                               .lookups = 26,
                               .row_bytes = 40,
                               .table_rows = 1000},
                              {.name = "fc",
                               .kind = model::LayerKind::kFullyConnected,
                               .inputs = {0},
                               .parameters = 5000,
                               .activation_bytes = 80,
                               .flops = 10000}}};
  profile.batch = 32;
  for (const char* type : {"cpu", "gpu"}) {
    model::DeviceProfile device{.type = type, .compute_fraction = 0.9, .communication_fraction = 0.8};
    device.layers = {{.forward = {0.1, 0.2}, .backward = {0.3, 0.4}}, {.forward = {1, 2}, .backward = {3, 4}}};
    profile.devices.push_back(device);
  }
  profile.devices[1].layers[1].backward = {5, 6};
  return profile;
}

cluster::Cluster two_nodes() {
  cluster::Cluster cluster;
  cluster.device_types = {
      {.name = "cpu", .kind = cluster::DeviceKind::kCpu, .count = 10, .price_per_hour = 0.04},
      {.name = "unused", .kind = cluster::DeviceKind::kCuda, .count = 0},
      {.name = "gpu", .kind = cluster::DeviceKind::kCuda, .count = 3, .memory_bytes = 16e9, .price_per_hour = 2.42}};
  cluster.nodes = {{.name = "a", .devices = {{"cpu", 10}, {"gpu", 1}}}, {.name = "b", .devices = {{"gpu", 2}}}};
  cluster.links = {{"a", "a", 5e9, 1e-6}, {"a", "b", 1e9, 1e-4}, {"b", "b", 2e10, 2e-6}};
  return cluster;
}

TEST(MakeProblem, PutsProfileAndClusterTogether) {
  const auto problem =
      make_problem(profile_of_two_layers(), two_nodes(),
                   {.cost_model = CostModel::kPipeline, .total_samples = 1e6, .batch = 64, .micro_batches = 4});
  ASSERT_TRUE(problem) << problem.error().message;
  EXPECT_EQ(problem->model, "two");
  EXPECT_EQ(problem->profile_batch, 32);
  EXPECT_EQ(problem->micro_batches, 4);
  ASSERT_EQ(problem->type_count(), 2);  // the type without devices is left out
  EXPECT_EQ(problem->types[0].gradient_sync, planning::GradientSync::kParameterServer);
  EXPECT_EQ(problem->types[1].name, "gpu");
  EXPECT_EQ(problem->types[1].gradient_sync, planning::GradientSync::kRing);
  EXPECT_EQ(problem->types[1].memory_bytes, 16e9);
  EXPECT_EQ(problem->types[1].price_per_hour, 2.42);
  EXPECT_EQ(problem->layers[0].sparse_bytes, 26 * 40);
  EXPECT_EQ(problem->layers[1].parameter_bytes, 4 * 5000);
  EXPECT_EQ(problem->layers[1].activation_bytes, 80);
  EXPECT_EQ(problem->at(1, 1).backward, (Affine{5, 6}));
  EXPECT_EQ(problem->at(1, 0).backward, (Affine{3, 4}));
  EXPECT_EQ(problem->at(0, 1).compute_fraction, 0.9);
  EXPECT_EQ(problem->at(0, 1).communication_fraction, 0.8);
  EXPECT_EQ(problem->cut_bytes, (std::vector<double>{100, 400, 0}));

  // cpus are on node a only; gpus on both, so that their slowest link is between the nodes.
  EXPECT_EQ(problem->link(0, 0).bytes_per_second, 5e9);
  EXPECT_EQ(problem->link(0, 1).bytes_per_second, 1e9);
  EXPECT_EQ(problem->link(1, 0).latency_seconds, 1e-4);
  EXPECT_EQ(problem->link(1, 1).bytes_per_second, 1e9);
  EXPECT_EQ(problem->types[0].bytes_per_second, 5e9);
  EXPECT_EQ(problem->types[1].bytes_per_second, 1e9);
  EXPECT_EQ(problem->types[1].latency_seconds, 1e-4);
}

TEST(MakeProblem, LinksOfTheProfileComeFirstAndNoLinkIsNoLimit) {
  model::Profile profile = profile_of_two_layers();
  profile.links = {{.from = "gpu", .to = "cpu", .bytes_per_second = 7e8, .latency_seconds = 3e-4}};
  cluster::Cluster cluster = two_nodes();
  cluster.links.clear();
  const auto problem = make_problem(profile, cluster, {});
  ASSERT_TRUE(problem) << problem.error().message;
  EXPECT_EQ(problem->link(0, 1).bytes_per_second, 7e8);
  EXPECT_EQ(problem->link(1, 0).latency_seconds, 3e-4);
  EXPECT_TRUE(std::isinf(problem->types[0].bytes_per_second));
}

// 5000 parameters of 4 bytes with their gradients and the optimizer's state, and activations of one micro-batch.
TEST(MakeProblem, MemoryIsThatOfTheProfilesOptimizer) {
  for (const std::optional<double> arrays : {std::optional<double>(), std::optional(0.0), std::optional(2.0)}) {
    model::Profile profile = profile_of_two_layers();
    profile.state_arrays = arrays;
    cluster::Cluster cluster = two_nodes();
    const double needed = (2 + arrays.value_or(1)) * 4 * 5000 + 8 * (400 + 80);
    for (const double memory : {needed, needed - 1}) {
      cluster.device_types[2].memory_bytes = memory;
      for (const model::Profile& one : {profile, model::coarsen(profile, 1)}) {
        const auto problem =
            make_problem(one, cluster, {.cost_model = CostModel::kPipeline, .batch = 8, .micro_batches = 1});
        ASSERT_TRUE(problem) << problem.error().message;
        const int last = problem->layer_count() - 1;
        const Candidate all = {StageChoice{.first = 0, .last = last, .type = 1}};
        const Evaluation whole = evaluate(*problem, all, Objective());
        EXPECT_DOUBLE_EQ(whole.stages[0].memory_bytes, needed);
        EXPECT_EQ(whole.feasible, memory == needed) << whole.violation;
      }
    }
  }
}

TEST(MakeProblem, NamesTheMissingDeviceType) {
  model::Profile profile = profile_of_two_layers();
  profile.devices.pop_back();
  const auto problem = make_problem(profile, two_nodes(), {});
  ASSERT_FALSE(problem);
  EXPECT_EQ(problem.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(problem.error().message, HasSubstr("device type 'gpu' is not in the profile of 'two'; it has: cpu"));
}

TEST(MakeProblem, RefusesTimesOfOtherLayersAndImpossibleOptions) {
  model::Profile profile = profile_of_two_layers();
  profile.devices[1].layers.pop_back();
  EXPECT_THAT(make_problem(profile, two_nodes(), {}).error().message, HasSubstr("times of 1 layers on 'gpu'"));
  EXPECT_THAT(make_problem(profile_of_two_layers(), two_nodes(), {.batch = 4, .micro_batches = 8}).error().message,
              HasSubstr("micro_batches is 8; accepted: 1 to the batch of 4"));
  cluster::Cluster empty = two_nodes();
  for (cluster::DeviceType& type : empty.device_types) {
    type.count = 0;
  }
  EXPECT_THAT(make_problem(profile_of_two_layers(), empty, {}).error().message, HasSubstr("0 device types"));
}

TEST(ValidateProblem, NamesFieldAndValue) {
  const Problem good = *make_problem(profile_of_two_layers(), two_nodes(), {});
  const auto message = [&](auto&& change) {
    Problem bad = good;
    change(bad);
    const Status status = validate(bad);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_TRUE(validate(good));
  EXPECT_THAT(
      message([](Problem& p) { p.types[1].price_per_hour = -2; }),
      HasSubstr("planning problem of 'two': types['gpu'].price_per_hour is -2; accepted: a number of at least 0"));
  EXPECT_THAT(message([](Problem& p) { p.types[1].count = -1; }), HasSubstr("types['gpu'].count is -1"));
  EXPECT_THAT(message([](Problem& p) { p.types[1].name = "cpu"; }), HasSubstr("'cpu' twice"));
  EXPECT_THAT(message([](Problem& p) { p.types[0].bytes_per_second = 0; }), HasSubstr("bytes_per_second is 0"));
  EXPECT_THAT(message([](Problem& p) { p.table[3].forward.per_sample = std::nan(""); }),
              HasSubstr("table['fc', 'gpu'].forward.per_sample is nan"));
  EXPECT_THAT(message([](Problem& p) { p.table[3].backward.fixed = -1; }), HasSubstr("backward.fixed is -1"));
  EXPECT_THAT(message([](Problem& p) { p.table[2].compute_fraction = 1.5; }),
              HasSubstr("compute_fraction is 1.5; accepted: a number from 0 to 1"));
  EXPECT_THAT(message([](Problem& p) { p.layers[0].sparse_bytes = INFINITY; }), HasSubstr("sparse_bytes is inf"));
  EXPECT_THAT(message([](Problem& p) { p.links[1].latency_seconds = -1; }), HasSubstr("links['cpu', 'gpu'].latency"));
  EXPECT_THAT(message([](Problem& p) { p.table.pop_back(); }), HasSubstr("table has 3 elements; accepted: 4"));
  EXPECT_THAT(message([](Problem& p) { p.cut_bytes.pop_back(); }), HasSubstr("cut_bytes has 2 elements; accepted: 3"));
  EXPECT_THAT(message([](Problem& p) { p.total_samples = 0; }), HasSubstr("total_samples is 0"));
  EXPECT_THAT(message([](Problem& p) { p.batch = 0; }), HasSubstr("batch is 0"));
  EXPECT_THAT(message([](Problem& p) { p.layers.clear(); }), HasSubstr("0 layers"));
}

}  // namespace
}  // namespace motley::planning
