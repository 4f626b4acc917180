// A network cut into parts computes what it computed whole, forward and backward, and its parts share out its tensors.
#include "motley/nn/network_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "motley/nn/model_graph.h"
#include "motley/nn/networks.h"
#include "tests/nn/exported_file.h"

namespace motley::nn {
namespace {

using ::testing::HasSubstr;

NetworkSpec image_network(const std::string& name, const std::string& norm = "") {
  NetworkSpec spec;
  spec.name = name;
  spec.norm = norm;
  spec.input_shape = {1, 16, 16};
  spec.outputs = 3;
  spec.dtype = "float64";
  return spec;
}

NetworkSpec token_network(bool tied = false) {
  NetworkSpec spec;
  spec.tied = tied;
  spec.name = "transformer";
  spec.layers = 2;
  spec.width = 8;
  spec.heads = 2;
  spec.input_shape = {6};
  spec.outputs = 5;
  spec.dtype = "float64";
  return spec;
}

std::unique_ptr<Network> load_network(const NetworkSpec& spec) {
  auto network = make_network(spec, 7);
  EXPECT_TRUE(network) << network.error().message;
  return std::move(*network);
}

std::vector<std::string> list_names(const std::vector<ChainLayer>& layers) {
  std::vector<std::string> names;
  for (const ChainLayer& layer : layers) names.push_back(layer.name);
  return names;
}

std::set<std::string> list_names(const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const NamedTensor& tensor : tensors) names.insert(tensor.name);
  return names;
}

std::unique_ptr<Stage> load_stage(std::unique_ptr<Network> network, bool input_gradients) {
  StageOptions options;
  options.dtype = torch::kFloat64;
  options.input_gradients = input_gradients;
  auto stage = Stage::create(std::move(network), options);
  EXPECT_TRUE(stage) << stage.error().message;
  return std::move(*stage);
}

// Cuts at two places, runs a micro-batch through the parts and back, and compares with the whole network. The gradient
// of a tensor that several parts have is the sum of theirs.
void expect_same(const NetworkSpec& spec, int first_cut, int second_cut) {
  SCOPED_TRACE(fmt::format("{} cut before layers {} and {}", spec.name, first_cut, second_cut));
  const auto whole = load_stage(load_network(spec), true);
  const std::vector<std::string> names = list_names(list_layers(*load_network(spec)));
  const int cuts[] = {0, first_cut, second_cut, static_cast<int>(names.size())};
  torch::manual_seed(3);
  std::vector<std::int64_t> shape = spec.input_shape;
  shape.insert(shape.begin(), 4);
  const bool reads_tokens = spec.name == "transformer";
  const torch::Tensor input =
      reads_tokens ? torch::randint(spec.outputs, shape, torch::kFloat64) : torch::randn(shape, torch::kFloat64);

  std::vector<std::unique_ptr<Stage>> parts;
  torch::Tensor values = input;
  std::set<std::string> seen;
  for (int i = 0; i < 3; ++i) {
    auto part = take_part(load_network(spec), names, cuts[i], cuts[i + 1] - 1);
    ASSERT_TRUE(part) << part.error().message;
    EXPECT_EQ(values.sizes().slice(1).vec(), part->input_shape);
    parts.push_back(load_stage(std::move(part->network), true));
    const auto outputs = parts.back()->forward(0, {values});
    ASSERT_TRUE(outputs) << outputs.error().message;
    values = outputs->front();
    EXPECT_EQ(values.sizes().slice(1).vec(), part->output_shape);
    for (const std::string& name : list_names(parts.back()->state())) {
      const bool is_shared = std::ranges::find(part->shared, name, &SharedTensor::name) != part->shared.end();
      EXPECT_TRUE(seen.insert(name).second || is_shared) << name;
    }
  }
  EXPECT_EQ(seen, list_names(whole->state()));
  const auto expected = whole->forward(0, {input});
  ASSERT_TRUE(expected) << expected.error().message;
  EXPECT_TRUE(torch::equal(values, expected->front()));

  torch::Tensor gradient = torch::randn_like(values);
  const auto expected_gradient = whole->backward(0, {gradient});
  ASSERT_TRUE(expected_gradient);
  std::map<std::string, torch::Tensor> gradients;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const auto back = (*part)->backward(0, {gradient});
    ASSERT_TRUE(back) << back.error().message;
    gradient = back->front();
    for (const NamedTensor& parameter : (*part)->parameters()) {
      torch::Tensor& sum = gradients[parameter.name];
      sum = sum.defined() ? sum + parameter.tensor.grad() : parameter.tensor.grad();
    }
  }
  ASSERT_EQ(gradient.defined(), !reads_tokens);
  EXPECT_TRUE(reads_tokens || torch::allclose(gradient, expected_gradient->front(), 1e-12, 1e-12));
  for (const NamedTensor& parameter : whole->parameters()) {
    ASSERT_EQ(gradients[parameter.name].defined(), parameter.name != "unused") << parameter.name;
    if (parameter.name == "unused") continue;
    EXPECT_TRUE(torch::allclose(gradients[parameter.name], parameter.tensor.grad(), 1e-12, 1e-12)) << parameter.name;
  }
  std::size_t norms = 0;
  for (const auto& part : parts) norms += part->batch_norms().size();
  EXPECT_EQ(norms, whole->batch_norms().size());
  for (const auto& part : parts) {
    for (const NamedTensor& buffer : part->buffers()) {
      for (const NamedTensor& other : whole->buffers()) {
        if (other.name != buffer.name) continue;
        EXPECT_TRUE(torch::equal(other.tensor, buffer.tensor)) << buffer.name;
      }
    }
  }
}

TEST(NetworkPart, PartsComputeWhatTheWholeDoes) {
  expect_same(image_network("mlp"), 1, 3);
  expect_same(image_network("cnn"), 2, 5);
  expect_same(image_network("resnet18", "group"), 3, 7);
  expect_same(image_network("resnet18", "batch"), 4, 11);
  expect_same(image_network("vgg11", "batch"), 9, 20);
  expect_same(token_network(), 1, 2);
  expect_same(token_network(), 3, 4);
  expect_same(token_network(true), 1, 3);
  expect_same(token_network(true), 3, 4);
}

TEST(NetworkPart, ATiedTensorIsInEveryPartThatReadsIt) {
  const NetworkSpec spec = token_network(true);
  const std::vector<std::string> names = list_names(list_layers(*load_network(spec)));
  ASSERT_EQ(names.size(), 5U);
  for (int layer = 0; layer < 5; ++layer) {
    const auto part = take_part(load_network(spec), names, layer, layer);
    ASSERT_TRUE(part) << part.error().message;
    EXPECT_EQ(list_names(part->network->parameters()).contains("embedding.token.weight"), layer == 0 || layer == 4);
    ASSERT_EQ(part->shared.size(), 1U);
    EXPECT_EQ(part->shared[0].name, "embedding.token.weight");
    EXPECT_EQ(part->shared[0].layers, (std::vector{0, 4}));
    EXPECT_TRUE(part->shared[0].trained);
  }
  const auto last = take_part(load_network(spec), names, 4, 4);
  const NamedTensors parameters = last->network->parameters();
  ASSERT_EQ(parameters.size(), 1U);
  for (const NamedTensor& parameter : load_network(spec)->parameters()) {
    if (parameter.name != parameters[0].name) continue;
    EXPECT_TRUE(torch::equal(parameters[0].tensor, parameter.tensor));
  }
}

// A chain with a residual block, statistics, and a tensor that nothing reads.
TEST(NetworkPart, TakesPartsOfExportedNetworks) {
  const NetworkSpec spec = exported_spec("parts_untied", "float64");
  const auto network = load_network(spec);
  const std::vector<std::string> names = list_names(list_layers(*network));
  ASSERT_GE(names.size(), 5U) << fmt::format("{}", fmt::join(names, " "));
  std::set<std::string> seen;
  for (int i = 0; i < static_cast<int>(names.size()); ++i) {
    const auto part = take_part(load_network(spec), names, i, i);
    ASSERT_TRUE(part) << part.error().message;
    for (const NamedTensors& tensors : {part->network->parameters(), part->network->buffers()}) {
      for (const std::string& name : list_names(tensors)) {
        EXPECT_TRUE(seen.insert(name).second) << name;
        EXPECT_TRUE(name != "unused" || i == 0);
      }
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"first", "second", "third", "unused", "shift"}));
}

// The last layer reads tensors of the first, of which one has two names in the module.
TEST(NetworkPart, KnowsTiedTensorsOfExportedNetworks) {
  NetworkSpec spec = exported_spec("parts_tied", "float64");
  spec.input_shape = {6};
  EXPECT_EQ(list_names(load_network(spec)->parameters()), (std::set<std::string>{"first", "second", "unused"}));
  const int count = static_cast<int>(list_layers(*load_network(spec)).size());
  ASSERT_GE(count, 5);
  expect_same(spec, 1, count - 1);
  expect_same(spec, 2, 3);
  const auto part = take_part(load_network(spec), list_names(list_layers(*load_network(spec))), 1, 1);
  ASSERT_TRUE(part) << part.error().message;
  ASSERT_EQ(part->shared.size(), 2U);
  for (const SharedTensor& tensor : part->shared) {
    EXPECT_EQ(tensor.name, tensor.trained ? "first" : "shift");
    EXPECT_EQ(tensor.layers, tensor.trained ? (std::vector{0, count - 2}) : (std::vector{1, count - 1}));
  }
}

// Of 3 positions of 4 values each. Two values go from its first layer to its last, the second one of this type.
class TwoValues final : public Network {
 public:
  explicit TwoValues(torch::Dtype second) : Network("two-values", {3, 4}), second_(second) {}
  Tensors forward(const Tensors& inputs) override { return join(split(inputs)); }
  NamedTensors parameters() const override { return {{"weight", weight_}}; }
  NamedTensors buffers() const override { return {}; }
  std::vector<BatchNormLayer> batch_norms() const override { return {}; }
  void train(bool) override {}
  void to(torch::Device, torch::Dtype) override {}
  std::vector<ChainLayer> chain() override {
    ChainLayer first, last;
    first.name = "split";
    first.forward = [this](const Tensors& inputs) { return split(inputs); };
    first.parameters = parameters();
    last.name = "join";
    last.forward = [](const Tensors& values) { return join(values); };
    return {first, last};
  }

 private:
  Tensors split(const Tensors& inputs) const {
    const torch::Tensor scaled = inputs.front() * weight_;
    return {scaled, scaled.sum(1).to(second_)};
  }
  // Views the first one as a matrix of positions.
  static Tensors join(const Tensors& values) {
    const torch::Tensor positions = values[0].view({-1, 4}).tanh();
    return {positions.view({-1, 3, 4}).sum(1) + values[1].to(torch::kFloat32)};
  }

  const torch::Dtype second_;
  const torch::Tensor weight_ = torch::arange(1, 5, torch::kFloat32);
};

TEST(NetworkPart, SeveralValuesBetweenPartsAreWhatTheLayerBeforeMade) {
  const std::vector<std::string> names = {"split", "join"};
  torch::manual_seed(4);
  const torch::Tensor input = torch::randn({5, 3, 4});
  for (const torch::Dtype second : {torch::kFloat32, torch::kBFloat16}) {
    torch::Tensor values = input;
    for (const int layer : {0, 1}) {
      const auto part = take_part(std::make_unique<TwoValues>(second), names, layer, layer);
      ASSERT_TRUE(part) << part.error().message;
      values = part->network->forward({values}).front();
      EXPECT_EQ(values.sizes().slice(1).vec(), part->output_shape);
    }
    EXPECT_TRUE(torch::equal(values, TwoValues(second).forward({input}).front())) << second;
  }
}

TEST(NetworkPart, RefusesRealNumbersAndIntegersBetweenParts) {
  const auto part = take_part(std::make_unique<TwoValues>(torch::kInt64), {"split", "join"}, 0, 0);
  ASSERT_FALSE(part);
  EXPECT_EQ(part.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(part.error().message, HasSubstr("real numbers or one type in all"));
}

TEST(NetworkPart, RefusesAnotherNetworksNames) {
  const NetworkSpec spec = image_network("mlp");
  std::vector<std::string> names = list_names(list_layers(*load_network(spec)));
  names[1] = "other";
  auto part = take_part(load_network(spec), names, 0, 1);
  ASSERT_FALSE(part);
  EXPECT_THAT(part.error().message, HasSubstr("layers[1] is 'other', but the network 'mlp' has 'fc1' there"));
  names.pop_back();
  part = take_part(load_network(spec), names, 0, 1);
  ASSERT_FALSE(part);
  EXPECT_THAT(part.error().message, HasSubstr("layers"));
}

}  // namespace
}  // namespace motley::nn
