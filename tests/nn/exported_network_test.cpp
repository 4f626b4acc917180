// Networks from .pt2 files compute what PyTorch computes with the module that they were exported from, to rounding,
// whole and cut into layers; and what cannot be run is refused by name.
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/nn/loss.h"
#include "motley/nn/model_graph.h"
#include "motley/nn/networks.h"
#include "tests/nn/exported_file.h"

namespace motley::nn {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 5;  // as in exported_models.py

using Reference = std::map<std::string, torch::Tensor>;

Reference load_reference(const std::filesystem::path& path) {
  const std::string bytes = *read_file(path);
  Reference reference;
  for (const auto& item : torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict()) {
    reference[item.key().toStringRef()] = item.value().toTensor();
  }
  return reference;
}

std::unique_ptr<Network> load_network(const NetworkSpec& spec) {
  auto network = make_network(spec, 0);
  EXPECT_TRUE(network) << network.error().message;
  (*network)->to(torch::kCPU, torch::kFloat64);
  (*network)->train(true);
  return std::move(*network);
}

double relative_difference(const torch::Tensor& one, const torch::Tensor& other) {
  EXPECT_EQ(one.sizes(), other.sizes());
  return ((one - other).norm() / std::max(1e-300, other.norm().item<double>())).item<double>();
}

constexpr double kBound = 1e-12;

void expect_buffers(Network& network, const Reference& reference) {
  for (const NamedTensor& buffer : network.buffers()) {
    const torch::Tensor expected = reference.at("buffer." + buffer.name).to(torch::kFloat64);
    EXPECT_LE((buffer.tensor.to(torch::kFloat64) - expected).abs().max().item<double>(), kBound) << buffer.name;
  }
}

void expect_gradients(Network& network, const Reference& reference) {
  std::size_t compared = 0;
  for (const NamedTensor& parameter : network.parameters()) {
    const auto expected = reference.find("gradient." + parameter.name);
    if (expected == reference.end()) continue;  // nothing reads it
    ++compared;
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    EXPECT_LE(relative_difference(parameter.tensor.grad(), expected->second), kBound) << parameter.name;
  }
  EXPECT_EQ(compared, static_cast<std::size_t>(std::ranges::count_if(
                          reference, [](const auto& item) { return item.first.starts_with("gradient."); })));
}

// In training with the same random numbers, then in evaluation; by layers, too, which each start from a copy that knows
// nothing of what it was computed from.
void expect_reference(const NetworkSpec& spec, const Reference& reference) {
  for (const bool by_layers : {false, true}) {
    SCOPED_TRACE(by_layers ? "by layers" : "whole");
    const auto network = load_network(spec);
    const std::vector<ChainLayer> layers = list_layers(*network);
    const auto run = [&](std::vector<Tensors>* inputs, std::vector<Tensors>* outputs) {
      if (!by_layers) return network->forward({reference.at("input")});
      Tensors values = {reference.at("input")};
      for (const ChainLayer& layer : layers) {
        if (inputs != nullptr) values = as_leaves(values);
        if (inputs != nullptr) inputs->push_back(values);
        values = layer.forward(values);
        if (outputs != nullptr) outputs->push_back(values);
      }
      return values;
    };
    std::vector<Tensors> inputs, outputs;
    torch::manual_seed(kSeed);
    const Tensors trained = run(&inputs, &outputs);
    EXPECT_LE(relative_difference(trained.front(), reference.at("train")), kBound);
    expect_buffers(*network, reference);
    Tensors gradients = {reference.at("weights")};
    if (by_layers) {
      for (std::size_t i = layers.size(); i-- > 0;) {
        if (outputs[i].front().requires_grad()) torch::autograd::backward(outputs[i], gradients);
        gradients.clear();
        for (const torch::Tensor& input : inputs[i]) gradients.push_back(input.grad());
      }
    } else {
      torch::autograd::backward(trained, gradients);
    }
    expect_gradients(*network, reference);

    const auto fresh = load_network(spec);
    fresh->train(false);
    const torch::NoGradGuard no_grad;
    EXPECT_LE(relative_difference(fresh->forward({reference.at("input")}).front(), reference.at("eval")), kBound);
    Tensors values = {reference.at("input")};
    for (const ChainLayer& layer : list_layers(*fresh)) values = layer.forward(values);
    EXPECT_LE(relative_difference(values.front(), reference.at("eval")), kBound);
    for (const NamedTensor& buffer : fresh->buffers()) {
      if (!buffer.name.ends_with("num_batches_tracked")) continue;
      EXPECT_EQ(buffer.tensor.item<std::int64_t>(), 0) << buffer.name;
    }
  }
}

std::vector<std::string> layer_names(const std::string& file) {
  const auto network = load_network(exported_spec(file, "float64"));
  std::vector<std::string> names;
  for (const ChainLayer& layer : list_layers(*network)) names.push_back(layer.name);
  return names;
}

class ExportedNetwork : public ::testing::TestWithParam<const char*> {};

TEST_P(ExportedNetwork, ComputesWhatPyTorchComputes) {
  expect_reference(exported_spec(GetParam(), "float64"),
                   load_reference(exported_file(std::string(GetParam()) + ".pt")));
}

INSTANTIATE_TEST_SUITE_P(All, ExportedNetwork,
                         ::testing::Values("net", "images", "resnet", "vit", "language", "sparse"),
                         [](const auto& info) { return std::string(info.param); });

// Where the package transformers is: in the Python that MOTLEY_TRANSFORMERS_PYTHON names, or in the one that libtorch
// is of.
TEST(ExportedModels, Gpt2OfTransformersComputesWhatPyTorchComputes) {
  const char* named = std::getenv("MOTLEY_TRANSFORMERS_PYTHON");
  const std::string python = "'" + std::string(named != nullptr ? named : MOTLEY_PYTHON) + "'";
  const char* const look = " -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(\"transformers\"))'";
  if (std::system((python + look).c_str()) != 0) {
    GTEST_SKIP() << "no Python package transformers in " << python
                 << " (MOTLEY_TRANSFORMERS_PYTHON names another Python)";
  }
  const auto folder = std::filesystem::temp_directory_path() / ("motley_gpt2_" + std::to_string(::getpid()));
  ASSERT_EQ(std::system((python + " '" MOTLEY_MODELS "' " + folder.string() + " gpt2 >/dev/null 2>&1").c_str()), 0);
  NetworkSpec spec = exported_spec("gpt2", "float64");
  spec.path = (folder / "gpt2.pt2").string();
  expect_reference(spec, load_reference(folder / "gpt2.pt"));
  EXPECT_GE(list_layers(*load_network(spec)).size(), 6u);
  std::filesystem::remove_all(folder);
}

TEST(ExportedModels, AreCutWhereOneTensorIsAlive) {
  EXPECT_THAT(layer_names("images"),
              ::testing::ElementsAre("features.0", "features.1..features.2", "features.3", "features.4", "features.5",
                                     "features.6", "features.7", "classifier.0", "classifier.1", "classifier.2",
                                     "classifier.3", "classifier.4"));
  EXPECT_THAT(layer_names("resnet"), ::testing::ElementsAre("conv1", "bn1..relu", "layer1.0", "layer1.1", "layer2.0",
                                                            "layer2.1", "avgpool", "flatten", "fc"));
  const std::vector<std::string> vit = layer_names("vit");
  EXPECT_EQ(vit.front(), "patch");
  EXPECT_EQ(vit.back(), "head");
  EXPECT_THAT(vit, ::testing::Contains("encoder.layers.0.norm1..encoder.layers.0.add"));
  EXPECT_GE(layer_names("language").size(), 6u) << "masks are made where they are read";
}

TEST(ExportedModels, TiedTensorsAreOne) {
  const auto network = load_network(exported_spec("language", "float64"));
  const NamedTensors parameters = network->parameters();
  EXPECT_EQ(std::ranges::count(parameters, "token.weight", &NamedTensor::name), 1);
  EXPECT_EQ(std::ranges::count(parameters, "head.weight", &NamedTensor::name), 0);
  const std::vector<ChainLayer> layers = list_layers(*network);
  const auto head = std::ranges::find(layers, "head", &ChainLayer::name);
  ASSERT_NE(head, layers.end());
  EXPECT_THAT(head->shared, ::testing::ElementsAre("token.weight"));
}

TEST(ExportedModels, TakeIdsOfAnyType) {
  const auto network = load_network(exported_spec("language", "float64"));
  network->train(false);
  const torch::Tensor ids = torch::randint(20, {3, 7}, torch::kInt64);
  const torch::Tensor expected = network->forward({ids}).front();
  for (const torch::Dtype dtype : {torch::kUInt8, torch::kInt32, torch::kFloat32}) {
    EXPECT_TRUE(torch::equal(network->forward({ids.to(dtype)}).front(), expected)) << dtype;
  }
}

TEST(ExportedModels, TheirBatchNormLayersAreKnown) {
  const auto network = load_network(exported_spec("images", "float64"));
  const std::vector<BatchNormLayer> norms = network->batch_norms();
  ASSERT_EQ(norms.size(), 1u) << "one that tracks nothing has no running statistics";
  EXPECT_EQ(norms[0].name, "features.1");
  EXPECT_EQ(norms[0].momentum, 0.1);
  EXPECT_TRUE(norms[0].running_mean.eq(0).all().item<bool>()) << "the export must not leave traces of its trial run";
  network->forward({torch::randn({4, 3, 8, 8}, torch::kFloat64)});
  EXPECT_EQ(norms[0].num_batches_tracked.item<std::int64_t>(), 1);
  EXPECT_FALSE(norms[0].running_mean.eq(0).all().item<bool>());
}

TEST(ExportedModels, TrainAndAreWithoutDropoutInEvaluation) {
  const auto stage = make_stage(exported_spec("net"), 0, {});
  ASSERT_TRUE(stage) << stage.error().message;
  EXPECT_EQ((*stage)->parameter_count(), 12 * 16 + 16 + 2 * 16 + 16 * 3 + 3);
  EXPECT_EQ((*stage)->parameters().front().name, "fc1.weight");
  torch::manual_seed(2);
  const torch::Tensor inputs = torch::randn({96, 3, 2, 2});
  const torch::Tensor targets = inputs.flatten(1).narrow(1, 0, 3).argmax(1);
  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    const Tensors outputs = *(*stage)->forward(step, {inputs});
    const LossOutcome loss = *compute_loss(Loss::kCrossEntropy, outputs[0], targets, 96);
    losses.push_back(loss.sum.item<double>() / 96);
    ASSERT_TRUE((*stage)->backward(step, {loss.output_gradient}));
    const torch::NoGradGuard no_grad;
    for (const NamedTensor& parameter : (*stage)->parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad(), 0.5);
      parameter.tensor.grad().zero_();
    }
  }
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  (*stage)->train(false);
  EXPECT_TRUE(torch::equal((*stage)->forward(0, {inputs})->front(), (*stage)->forward(0, {inputs})->front()))
      << "no dropout in evaluation";
}

TEST(ExportedModels, RecomputationAndAutocastAreThoseOfAnyNetwork) {
  const torch::Tensor inputs = torch::randn({8, 3, 8, 8});
  Tensors gradients[2];
  for (const bool recompute : {false, true}) {
    const auto stage = make_stage(exported_spec("images"), 0, {.recompute = recompute});
    ASSERT_TRUE(stage);
    torch::manual_seed(4);
    const Tensors outputs = *(*stage)->forward(0, {inputs});
    ASSERT_TRUE((*stage)->backward(0, {torch::ones_like(outputs[0])}));
    for (const NamedTensor& parameter : (*stage)->parameters()) gradients[recompute].push_back(parameter.tensor.grad());
    EXPECT_EQ((*stage)->batch_norms()[0].num_batches_tracked.item<std::int64_t>(), 1);
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i) EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i]));
  const auto cast = make_stage(exported_spec("images"), 0, {.autocast = true});
  EXPECT_EQ((*cast)->forward(0, {inputs})->front().scalar_type(), torch::kBFloat16);
}

// In bfloat16 a position of 1001 is 1000, and its sine another.
TEST(ExportedModels, WhatStandsOutsideAutocastIsComputedSo) {
  const auto stage = make_stage(exported_spec("positions"), 0, {.autocast = true});
  ASSERT_TRUE(stage) << stage.error().message;
  const torch::Tensor positions = torch::arange(1000, 1020, torch::kFloat32).reshape({-1, 1});
  const auto found = (*stage)->forward(0, {positions});
  ASSERT_TRUE(found) << found.error().message;
  const torch::Tensor frequencies = torch::pow(10000.0, -torch::arange(4, torch::kFloat64) / 4);
  const torch::Tensor expected = torch::sin(positions.to(torch::kFloat64) * frequencies);
  EXPECT_LT((found->front().to(torch::kFloat64) - expected).abs().max().item<double>(), 1e-3);
}

// It has a count of batches and never counts; one worker's statistics are PyTorch's.
TEST(ExportedModels, RunningStatisticsOfInstanceNormAreKept) {
  const auto stage = make_stage(exported_spec("normalised"), 0, {});
  ASSERT_TRUE(stage) << stage.error().message;
  ASSERT_EQ((*stage)->batch_norms().size(), 1U);
  BatchNormAverage average(**stage);
  for (int step = 0; step < 3; ++step) {
    average.begin_step();
    ASSERT_TRUE((*stage)->forward(step, {torch::randn({5, 3, 4, 4}) * 2 + 1}));
    const BatchNormLayer norm = (*stage)->batch_norms().front();
    const torch::Tensor mean = norm.running_mean.clone(), variance = norm.running_var.clone();
    average.finish_step(average.contribution(5));
    EXPECT_TRUE(torch::allclose(norm.running_mean, mean, 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(norm.running_var, variance, 1e-5, 1e-6));
  }
}

class RefusedFiles : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  static std::string refusal(const std::filesystem::path& path, std::vector<std::int64_t> shape = {}) {
    NetworkSpec spec = exported_spec("");
    spec.path = path.string();
    spec.input_shape = std::move(shape);
    const auto network = make_network(spec, 0);
    if (network) return "accepted";
    EXPECT_EQ(network.error().code, ErrorCode::kInvalidInput);
    return network.error().message;
  }
  // Writes a good file anew, with its graph changed.
  void write_changed(const std::function<std::string(std::string)>& change) const {
    caffe2::serialize::PyTorchStreamReader source(exported_file("language.pt2").string());
    caffe2::serialize::PyTorchStreamWriter target(path_.string());
    for (const std::string& name : source.getAllRecords()) {
      if (name == "version" || name.starts_with(".data/")) continue;  // which the writer has of its own
      const auto [data, size] = source.getRecord(name);
      std::string bytes(static_cast<const char*>(data.get()), size);
      if (name == "models/model.json") bytes = change(std::move(bytes));
      target.writeRecord(name, bytes.data(), bytes.size());
    }
    target.writeEndOfFile();
  }
  // The refusal of a good file in which one text is another.
  std::string refusal_with(const std::string& before, const std::string& after) const {
    write_changed([&](std::string graph) {
      EXPECT_NE(graph.find(before), std::string::npos) << before;
      for (std::size_t at = graph.find(before); at != std::string::npos; at = graph.find(before, at + after.size())) {
        graph.replace(at, before.size(), after);
      }
      return graph;
    });
    return refusal(path_);
  }

  const std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("motley_refused_" + std::to_string(::getpid()) + ".pt2");
};

TEST_F(RefusedFiles, WhatIsNoExportedNetwork) {
  EXPECT_THAT(refusal("/nowhere/model.pt2"), HasSubstr("/nowhere/model.pt2"));
  EXPECT_THAT(refusal("/proc/self/exe"), HasSubstr("motley export"));
  EXPECT_THAT(refusal(exported_file("script.pt2")),
              HasSubstr("is a TorchScript file, which Motley no longer reads; export"));
  EXPECT_THAT(refusal(exported_file("weights.pt2")), HasSubstr("holds pickled tensors and no network"));
  const std::string whole = *read_file(exported_file("frozen.pt2"));
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, whole.size() / 2, whole.size() - 10}) {
    ASSERT_TRUE(write_file(path_, whole.substr(0, size)));
    EXPECT_THAT(refusal(path_), HasSubstr("is not a whole .pt2 file")) << size;
  }
}

TEST_F(RefusedFiles, WhatCannotBeRunHere) {
  EXPECT_THAT(refusal(exported_file("branches.pt2")), HasSubstr("uses 'torch.ops.higher_order.cond'"));
  EXPECT_THAT(refusal(exported_file("fixed_batch.pt2")), HasSubstr("was exported for batches of 5 samples only"));
  EXPECT_THAT(refusal(exported_file("images.pt2"), {3, 9, 9}),
              HasSubstr("model.input_shape: samples are 3x9x9, but the network in"));
  EXPECT_EQ(refusal_with("\"major\": 8", "\"major\": 8"), "accepted");
  EXPECT_THAT(refusal_with("torch.ops.aten.layer_norm.default", "torch.ops.mine.layer_norm.default"),
              HasSubstr("uses 'torch.ops.mine.layer_norm.default' (in 'blocks.0.norm', LayerNorm), which this libtorch "
                        "does not have"));
  EXPECT_THAT(refusal_with("\"major\": 8", "\"major\": 9"),
              HasSubstr("version 9 of torch.export's format; accepted: 8"));
  EXPECT_THAT(refusal_with("\"graph_module\"", "\"graph_nodule\""), HasSubstr("is damaged"));
  EXPECT_THAT(refusal_with("{\"graph_module\"", "{[graph_module\""), HasSubstr("is not JSON"));
}

// Whatever a file says, it is loaded or refused, and what is loaded computes or says why not.
TEST_F(RefusedFiles, ChangedGraphsDoNoHarm) {
  Random random(11);
  int accepted = 0, refused = 0;
  const torch::Tensor ids = torch::zeros({2, 7}, torch::kInt64);
  for (int round = 0; round < 300; ++round) {
    bool is_larger = false;  // than memory, it may be
    write_changed([&](std::string graph) {
      for (int change = 0; change < 3; ++change) {
        const std::size_t at = random.below(graph.size());
        switch (random.below(3)) {
          case 0:
            graph[at] = static_cast<char>('0' + random.below(10));
            break;
          case 1: {  // one word in the place of another
            const std::size_t from = graph.find('"', at), to = graph.find('"', random.below(graph.size()));
            if (from == std::string::npos || to == std::string::npos) break;
            const std::string word = graph.substr(to, graph.find('"', to + 1) - to);
            graph.replace(from, graph.find('"', from + 1) - from, word);
            break;
          }
          default: {  // another number
            const std::size_t digit = graph.find_first_of("0123456789", at);
            is_larger = true;
            if (digit != std::string::npos) graph.insert(digit, std::string(random.below(12), '9'));
          }
        }
      }
      return graph;
    });
    NetworkSpec spec = exported_spec("");
    spec.path = path_.string();
    const auto stage = make_stage(spec, 0, {});
    ++(stage ? accepted : refused);
    if (!stage) {
      EXPECT_THAT(stage.error().message, HasSubstr("model.path"));
    } else if (!is_larger) {
      (void)(*stage)->forward(0, {ids});
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace motley::nn
