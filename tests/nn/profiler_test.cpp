// Graphs of networks against torch's own counts and hand-counted sizes; chains against the network that they cut; and
// the profiler on a clock that the layers themselves move.
#include "motley/nn/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "motley/base/random.h"
#include "motley/nn/model_graph.h"
#include "motley/nn/networks.h"
#include "tests/nn/exported_file.h"

namespace motley::nn {
namespace {

using model::LayerKind;
using ::testing::HasSubstr;

std::unique_ptr<Network> load_network(const std::string& name, std::vector<std::int64_t> shape, std::int64_t outputs) {
  NetworkSpec spec;
  spec.name = name;
  spec.input_shape = std::move(shape);
  spec.outputs = outputs;
  auto network = make_network(spec, 3);
  EXPECT_TRUE(network) << network.error().message;
  return std::move(*network);
}

double count_parameters(const Network& network) {
  double count = 0;
  for (const NamedTensor& parameter : network.parameters()) {
    count += static_cast<double>(parameter.tensor.numel());
  }
  return count;
}

torch::Tensor run_chain(Network& network, const torch::Tensor& input) {
  Tensors values = {input};
  for (const ChainLayer& layer : list_layers(network)) {
    values = layer.forward(values);
  }
  return values.front();
}

torch::Tensor make_batch(const Network& network, std::int64_t samples) {
  std::vector<std::int64_t> shape = network.sample_shape();
  shape.insert(shape.begin(), samples);
  return torch::randn(shape);
}

TEST(ModelGraph, ChainsOfOurNetworksComputeWhatTheNetworksDo) {
  torch::manual_seed(1);
  for (const char* name : {"mlp", "cnn", "resnet18", "vgg11"}) {
    SCOPED_TRACE(name);
    const auto network = load_network(name, {1, 16, 16}, 10);
    const NamedTensors buffers = network->buffers();
    const torch::Tensor buffers_before = buffers.empty() ? torch::zeros(1) : buffers.back().tensor.clone();
    const auto graph = model_graph(*network);
    ASSERT_TRUE(graph) << graph.error().message;
    EXPECT_TRUE(torch::equal(buffers.empty() ? torch::zeros(1) : buffers.back().tensor, buffers_before))
        << "running statistics have moved";
    EXPECT_GT(graph->layers.size(), 3U);
    EXPECT_EQ(graph->input_bytes, 256 * 4);
    EXPECT_EQ(graph->layers.back().activation_bytes, 40);
    double parameters = 0;
    for (const model::Layer& layer : graph->layers) {
      parameters += layer.parameters;
    }
    EXPECT_EQ(parameters, count_parameters(*network));

    network->train(false);
    const torch::Tensor inputs = make_batch(*network, 3);
    EXPECT_TRUE(torch::equal(run_chain(*network, inputs), network->forward({inputs}).front()));
  }
}

TEST(ModelGraph, SizesOfTheCnnAreThoseCountedByHand) {
  const auto network = load_network("cnn", {1, 28, 28}, 10);
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  struct Expected {
    const char* name;
    LayerKind kind;
    double parameters, outputs, flops;
  };
  const std::vector<Expected> expected = {
      {"conv1", LayerKind::kConvolution, 25 * 24 + 24, 24 * 14 * 14, 2.0 * 25 * 24 * 14 * 14},
      {"relu1", LayerKind::kActivation, 0, 24 * 14 * 14, 0},
      {"conv2", LayerKind::kConvolution, 9 * 24 * 48 + 48, 48 * 49, 2.0 * 9 * 24 * 48 * 49},
      {"relu2", LayerKind::kActivation, 0, 48 * 49, 0},
      {"flatten", LayerKind::kOther, 0, 48 * 49, 0},
      {"fc1", LayerKind::kFullyConnected, 48 * 49 * 64 + 64, 64, 2.0 * 48 * 49 * 64},
      {"relu_fc1", LayerKind::kActivation, 0, 64, 0},
      {"output", LayerKind::kFullyConnected, 650, 10, 2.0 * 64 * 10}};
  ASSERT_EQ(graph->layers.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const model::Layer& layer = graph->layers[i];
    EXPECT_EQ(layer.name, expected[i].name);
    EXPECT_EQ(layer.kind, expected[i].kind) << layer.name;
    EXPECT_EQ(layer.parameters, expected[i].parameters) << layer.name;
    EXPECT_EQ(layer.activation_bytes, 4 * expected[i].outputs) << layer.name;
    EXPECT_EQ(layer.flops, expected[i].flops) << layer.name;
    EXPECT_EQ(layer.inputs, i == 0 ? std::vector<int>() : std::vector<int>{static_cast<int>(i) - 1});
  }
  const std::vector<double> cuts = model::cut_bytes(*graph);
  EXPECT_EQ(cuts.front(), 784 * 4);
  EXPECT_EQ(cuts[1], 4 * 24 * 14 * 14);
  EXPECT_EQ(cuts.back(), 0);
}

// A residual block keeps the output of its first convolution, that of each normalisation, and what is under the ReLUs.
TEST(ModelGraph, ResidualBlocksAreLayersThatKeepValuesInside) {
  const auto network = load_network("resnet18", {1, 8, 8}, 10);
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  const auto block = std::ranges::find(graph->layers, "layer1.0", &model::Layer::name);
  ASSERT_NE(block, graph->layers.end());
  EXPECT_EQ(block->kind, LayerKind::kBlock);
  EXPECT_EQ(block->parameters, 2 * (9 * 64 * 64 + 2 * 64));
  EXPECT_EQ(block->activation_bytes, 4 * 64 * 8 * 8);
  EXPECT_GE(block->flops, 2 * 2.0 * 9 * 64 * 64 * 8 * 8);
  EXPECT_LE(block->flops, 1.01 * 2 * 2.0 * 9 * 64 * 64 * 8 * 8);
  EXPECT_GE(block->inner_bytes, 3 * block->activation_bytes);
  EXPECT_LE(block->inner_bytes, 5 * block->activation_bytes);
}

class ExportedGraph : public ::testing::Test {
 protected:
  static std::unique_ptr<Network> load(const std::string& file) {
    auto network = make_network(exported_spec(file), 1);
    EXPECT_TRUE(network) << network.error().message;
    return std::move(*network);
  }
  static void expect_same(Network& network) {
    const torch::Tensor inputs = make_batch(network, 5);
    EXPECT_TRUE(torch::equal(run_chain(network, inputs), network.forward({inputs}).front()));
  }
  static std::vector<std::string> names(const model::Graph& graph) {
    std::vector<std::string> names;
    for (const model::Layer& layer : graph.layers) {
      names.push_back(layer.name);
    }
    return names;
  }
};

TEST_F(ExportedGraph, AChainIsCutIntoItsLayersNestedOnesToo) {
  torch::manual_seed(2);
  const auto network = load("chain");
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_THAT(names(*graph),
              ::testing::ElementsAre("flatten", "features.a", "features.relu", "features.b", "tanh", "classifier"));
  EXPECT_EQ(graph->layers[1].parameters, 12 * 8 + 8);
  EXPECT_EQ(graph->layers[1].kind, LayerKind::kFullyConnected);
  EXPECT_EQ(graph->layers[4].kind, LayerKind::kActivation);
  EXPECT_EQ(graph->layers[5].parameters, 6 * 3 + 3);
  EXPECT_EQ(graph->layers[5].activation_bytes, 12);
  expect_same(*network);
}

TEST_F(ExportedGraph, ASkipKeepsWhatItGoesAroundTogether) {
  torch::manual_seed(2);
  const auto network = load("skip");
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_THAT(names(*graph), ::testing::ElementsAre("first", "relu..add", "last"));
  EXPECT_EQ(graph->layers[1].kind, LayerKind::kBlock);
  EXPECT_EQ(graph->layers[1].parameters, 4 * 4 + 4);
  expect_same(*network);
}

TEST_F(ExportedGraph, WhatIsNoChainIsOneLayerAndSaysSo) {
  torch::manual_seed(2);
  const auto network = load("no_chain");
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  ASSERT_EQ(graph->layers.size(), 1U);
  EXPECT_EQ(graph->layers[0].name, network->name());
  EXPECT_EQ(graph->layers[0].parameters, 20);
  EXPECT_THAT(graph->source, HasSubstr("no chain"));
  expect_same(*network);
}

// Backward starts from each layer's input, which a layer may therefore not write into.
TEST_F(ExportedGraph, ALayerThatWritesIntoItsInputStaysWithTheOneBefore) {
  torch::manual_seed(2);
  const auto network = load("inplace");
  const auto graph = model_graph(*network);
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_THAT(names(*graph), ::testing::ElementsAre("first..relu", "last"));
  expect_same(*network);
}

TEST_F(ExportedGraph, WithoutASampleShapeTheKeyIsNamed) {
  torch::manual_seed(2);
  const auto network = load("any_length");
  const auto graph = model_graph(*network);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(graph.error().message, HasSubstr("model.input_shape"));
}

TEST(FitAffine, GivesBackEveryLine) {
  Random random(5);
  for (int round = 0; round < 500; ++round) {
    const model::Affine line{round % 5 == 0 ? 0 : random.uniform() * 1e-2,
                             round % 7 == 0 ? 0 : random.uniform() * 1e-3};
    std::vector<std::pair<double, double>> points;
    double batch = 1 + static_cast<double>(random.below(4));
    for (std::size_t i = 0; i < 2 + random.below(4); ++i) {
      points.emplace_back(batch, line.at(batch));
      batch += 1 + static_cast<double>(random.below(60));
    }
    const model::Affine found = fit_affine(points);
    EXPECT_NEAR(found.fixed, line.fixed, 1e-9);
    EXPECT_NEAR(found.per_sample, line.per_sample, 1e-9);
  }
}

TEST(FitAffine, IsNeverNegativeAndHardlyMovedByOneStall) {
  const auto falling = fit_affine(std::vector<std::pair<double, double>>{{1, 2}, {4, 1.9}, {16, 1.8}});
  EXPECT_EQ(falling.per_sample, 0);
  EXPECT_GT(falling.fixed, 1.7);
  const auto steep = fit_affine(std::vector<std::pair<double, double>>{{1, 0.5}, {4, 4}, {16, 18}});
  EXPECT_EQ(steep.fixed, 0);
  EXPECT_GT(steep.per_sample, 0.4);
  EXPECT_EQ(fit_affine(std::vector<std::pair<double, double>>{{8, 4}}), (model::Affine{0, 0.5}));
  EXPECT_EQ(fit_affine(std::vector<std::pair<double, double>>{{1, 0}, {4, 0}}), (model::Affine{0, 0}));

  std::vector<std::pair<double, double>> points;
  for (const double batch : {1, 2, 4, 8, 16, 32}) {
    points.emplace_back(batch, 1 + 0.5 * batch);
  }
  points[3].second *= 4;
  const auto stalled = fit_affine(points);
  EXPECT_NEAR(stalled.fixed, 1, 0.1);
  EXPECT_NEAR(stalled.per_sample, 0.5, 0.03);
}

// A layer whose forward and backward take what two lines say, on a clock that they move.
struct Timing {
  model::Affine forward;
  model::Affine backward;
};

class TimedLayer : public torch::autograd::Function<TimedLayer> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor input, torch::Tensor weight,
                               std::int64_t clock, std::int64_t timing) {
    context->save_for_backward({input, weight});
    context->saved_data["clock"] = clock;
    context->saved_data["timing"] = timing;
    reinterpret_cast<ManualClock*>(clock)->advance(
        reinterpret_cast<const Timing*>(timing)->forward.at(static_cast<double>(input.size(0))));
    return input * weight;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const auto saved = context->get_saved_variables();
    reinterpret_cast<ManualClock*>(context->saved_data["clock"].toInt())
        ->advance(reinterpret_cast<const Timing*>(context->saved_data["timing"].toInt())
                      ->backward.at(static_cast<double>(saved[0].size(0))));
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0), {}, {}};
  }
};

class TimedNetwork final : public Network {
 public:
  TimedNetwork(ManualClock& clock, std::vector<Timing> timings, std::int64_t refuses = 0)
      : Network("timed", {4}), clock_(clock), timings_(std::move(timings)), refuses_(refuses) {
    for (std::size_t i = 0; i < timings_.size(); ++i) {
      weights_.push_back(torch::ones({4}).requires_grad_());
    }
  }
  Tensors forward(const Tensors& inputs) override { return inputs; }
  NamedTensors parameters() const override {
    NamedTensors named;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      named.push_back({fmt::format("{}.weight", i), weights_[i]});
    }
    return named;
  }
  NamedTensors buffers() const override { return {}; }
  std::vector<BatchNormLayer> batch_norms() const override { return {}; }
  std::vector<ChainLayer> chain() override {
    std::vector<ChainLayer> layers;
    for (std::size_t i = 0; i < timings_.size(); ++i) {
      layers.push_back({fmt::format("layer {}", i),
                        LayerKind::kOther,
                        of_one_value([this, i](const torch::Tensor& input) {
                          TORCH_CHECK(!training_ || input.size(0) != refuses_, "refused");
                          return TimedLayer::apply(input, weights_[i], reinterpret_cast<std::int64_t>(&clock_),
                                                   reinterpret_cast<std::int64_t>(&timings_[i]));
                        }),
                        {{fmt::format("{}.weight", i), weights_[i]}}});
    }
    return layers;
  }
  void train(bool on) override { training_ = on; }
  void to(torch::Device, torch::Dtype) override {}

 private:
  ManualClock& clock_;
  std::vector<Timing> timings_;
  std::int64_t refuses_;
  std::vector<torch::Tensor> weights_;
  bool training_ = true;
};

const std::vector<Timing> kTimings = {
    {{0.001, 0.0002}, {0.002, 0.0003}}, {{0, 0.001}, {0.0005, 0.002}}, {{0.004, 0}, {0, 0.0001}}};

TEST(Profiler, FindsTheLinesThatTheLayersFollow) {
  ManualClock clock;
  TimedNetwork network(clock, kTimings);
  const auto graph = step_graph(network);
  ASSERT_TRUE(graph) << graph.error().message;
  StepSpec step;
  ProfilerOptions options{.seconds = 10, .clock = clock};
  const auto times = profile_layers(network, *graph, step, torch::kCPU, options);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_THAT(times->batches, ::testing::ElementsAre(1, 4, 16, 64));
  ASSERT_EQ(times->layers.size(), kTimings.size() + 1);
  for (std::size_t i = 0; i < kTimings.size(); ++i) {
    EXPECT_NEAR(times->layers[i].forward.fixed, kTimings[i].forward.fixed, 1e-9);
    EXPECT_NEAR(times->layers[i].forward.per_sample, kTimings[i].forward.per_sample, 1e-9);
    EXPECT_NEAR(times->layers[i].backward.fixed, kTimings[i].backward.fixed, 1e-9);
    EXPECT_NEAR(times->layers[i].backward.per_sample, kTimings[i].backward.per_sample, 1e-9);
    ASSERT_EQ(times->layers[i].measurements.size(), 4U);
    EXPECT_NEAR(times->layers[i].measurements[2].forward_seconds, kTimings[i].forward.at(16), 1e-9);
    EXPECT_NEAR(times->layers[i].measurements[2].spread, 0, 1e-6);
  }
  EXPECT_EQ(graph->layers.back().name, "step");
  EXPECT_EQ(times->layers.back().forward, model::Affine());
  for (const NamedTensor& weight : network.parameters()) {
    EXPECT_TRUE(torch::equal(weight.tensor, torch::ones({4}))) << "the weights have moved";
  }

  model::Profile profile{*graph, 16, {}, {}};
  profile.devices.push_back({.type = "cpu", .rule = "by a clock moved by hand", .layers = times->layers});
  const auto read = model::parse_profile(model::to_json(profile), "profile.json");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, profile);
}

TEST(Profiler, LeavesOutBatchesThatTimeOrMemoryDoNotSufficeFor) {
  ManualClock clock;
  TimedNetwork network(clock, kTimings);
  const auto graph = step_graph(network);
  ASSERT_TRUE(graph) << graph.error().message;
  const double pass_of_16 = 0.0075 + 16 * 0.0036;
  // Two warm passes and five rounds up to 16, which is expected to take four times as long as 4 did; not so for 64.
  ProfilerOptions options{.seconds = 14 * pass_of_16, .clock = clock};
  auto times = profile_layers(network, *graph, {}, torch::kCPU, options);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_THAT(times->batches, ::testing::ElementsAre(1, 4, 16));

  options.seconds = 100;
  options.memory_bytes = 2 * 10 * (16 + 4 * (3 * 16 + 4));  // twice what ten samples need
  times = profile_layers(network, *graph, {}, torch::kCPU, options);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_THAT(times->batches, ::testing::ElementsAre(1, 4));
}

TEST(Profiler, GoesOnWithoutABatchOfOneThatTheNetworkRefusesAndSaysSoOfOthers) {
  ManualClock clock;
  TimedNetwork no_one(clock, kTimings, 1);
  const auto graph = step_graph(no_one);
  ASSERT_TRUE(graph) << graph.error().message;
  ProfilerOptions options{.batches = {1, 4, 8}, .seconds = 10, .clock = clock};
  const auto times = profile_layers(no_one, *graph, {}, torch::kCPU, options);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_THAT(times->batches, ::testing::ElementsAre(4, 8));

  TimedNetwork no_four(clock, kTimings, 4);
  const auto refused = profile_layers(no_four, *graph, {}, torch::kCPU, options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("a batch of 4"));
  EXPECT_THAT(refused.error().message, HasSubstr("refused"));
}

// Real networks, with nothing said of how long they take.
TEST(Profiler, ProfilesARealNetworkToAValidFile) {
  for (const bool reads_tokens : {false, true}) {
    torch::manual_seed(6);
    const auto network = reads_tokens ? load_network("transformer", {8}, 50) : load_network("cnn", {1, 28, 28}, 10);
    const auto graph = step_graph(*network);
    ASSERT_TRUE(graph) << graph.error().message;
    StepSpec step;
    step.optimizer.momentum = 0.9;
    step.tokens = reads_tokens ? 50 : 0;
    ProfilerOptions options{.batches = {1, 3}, .seconds = 0.2};
    const auto times = profile_layers(*network, *graph, step, torch::kCPU, options);
    ASSERT_TRUE(times) << times.error().message;
    EXPECT_GE(times->rounds, 5);
    ASSERT_EQ(times->layers.size(), graph->layers.size());
    for (std::size_t i = 0; i < graph->layers.size(); ++i) {
      const model::LayerTime& time = times->layers[i];
      EXPECT_GT(time.measurements.back().forward_seconds, 0) << graph->layers[i].name;
      const bool is_step = graph->layers[i].name == model::kStepLayer;  // whose backward is the last layer's
      EXPECT_EQ(time.measurements.back().backward_seconds > 0, !is_step) << graph->layers[i].name;
      EXPECT_EQ(time.update_seconds > 0, graph->layers[i].parameters > 0) << graph->layers[i].name;
    }
    model::Profile profile{*graph, 3, {}, {}};
    profile.devices.push_back({.type = "cpu", .rule = "measured", .layers = times->layers});
    const auto read = model::parse_profile(model::to_json(profile), "profile.json");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, profile);
  }
}

}  // namespace
}  // namespace motley::nn
