// The transformer computes what its definition says, written out here in plain operations, and no position sees what
// follows it.
#include "motley/nn/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numbers>

#include "motley/nn/model_graph.h"

namespace motley::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kTokens = 11, kPositions = 6, kLayers = 3, kWidth = 8, kHeads = 2;

NetworkSpec small_transformer() {
  NetworkSpec spec;
  spec.name = "transformer";
  spec.input_shape = {kPositions};
  spec.outputs = kTokens;
  spec.layers = kLayers;
  spec.width = kWidth;
  spec.heads = kHeads;
  spec.dtype = "float64";
  return spec;
}

std::unique_ptr<Stage> find_stage(const NetworkSpec& spec) {
  auto stage = make_stage(spec, 7, {});
  EXPECT_TRUE(stage) << stage.error().message;
  return std::move(*stage);
}

torch::Tensor random_tokens(std::int64_t samples) {
  return torch::randint(kTokens, {samples, kPositions}, torch::kFloat64);
}

// Weights by name; matrices multiply from the right.
using Weights = std::map<std::string, torch::Tensor>;

torch::Tensor normalised(const torch::Tensor& x, const Weights& weights, const std::string& name) {
  const torch::Tensor off = x - x.mean(-1, true);
  return off / (off.square().mean(-1, true) + 1e-5).sqrt() * weights.at(name + ".weight") + weights.at(name + ".bias");
}

torch::Tensor affine(const torch::Tensor& x, const Weights& weights, const std::string& name) {
  return torch::matmul(x, weights.at(name + ".weight").t()) + weights.at(name + ".bias");
}

// One sample, one position and one head after the other.
torch::Tensor attention(const torch::Tensor& input, const Weights& weights, const std::string& block) {
  const torch::Tensor all = affine(input, weights, block + ".query_key_value");
  const std::int64_t size = kWidth / kHeads;
  torch::Tensor mixed = torch::zeros_like(input);
  for (std::int64_t sample = 0; sample < input.size(0); ++sample) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      const auto part = [&](std::int64_t which, std::int64_t position) {
        return all[sample][position].narrow(0, which * kWidth + head * size, size);
      };
      for (std::int64_t position = 0; position < kPositions; ++position) {
        torch::Tensor sum = torch::zeros({size}, torch::kFloat64);
        torch::Tensor total = torch::zeros({}, torch::kFloat64);
        for (std::int64_t seen = 0; seen <= position; ++seen) {
          const torch::Tensor weight = (part(0, position).dot(part(1, seen)) / std::sqrt(double(size))).exp();
          sum = sum + weight * part(2, seen);
          total = total + weight;
        }
        mixed[sample][position].narrow(0, head * size, size).copy_(sum / total);
      }
    }
  }
  return affine(mixed, weights, block + ".projection");
}

torch::Tensor tanh_gelu(const torch::Tensor& x) {
  return 0.5 * x * (1 + torch::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))));
}

torch::Tensor plain_forward(const torch::Tensor& tokens, const Weights& weights) {
  torch::Tensor x = weights.at("embedding.token.weight").index({tokens.to(torch::kInt64)}) +
                    weights.at("embedding.position").unsqueeze(0);
  for (std::int64_t i = 1; i <= kLayers; ++i) {
    const std::string block = fmt::format("block{}", i);
    x = x + attention(normalised(x, weights, block + ".norm1"), weights, block);
    const torch::Tensor inner = tanh_gelu(affine(normalised(x, weights, block + ".norm2"), weights, block + ".expand"));
    x = x + affine(inner, weights, block + ".contract");
  }
  const bool tied = !weights.contains("output.weight");
  return torch::matmul(normalised(x, weights, "norm"), weights.at(tied ? kTokenWeights : "output.weight").t());
}

void expect_what_the_definition_says(bool tied) {
  NetworkSpec spec = small_transformer();
  spec.tied = tied;
  const auto stage = find_stage(spec);
  torch::manual_seed(4);
  Weights weights;
  std::int64_t parameters = 0;
  for (const NamedTensor& parameter : stage->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.tensor.add_(torch::randn_like(parameter.tensor), 0.3);  // so that nothing is 0, 1, or nearly linear
    weights[parameter.name] = parameter.tensor.detach().clone().requires_grad_();
    parameters += parameter.tensor.numel();
  }
  EXPECT_EQ(parameters, kTokens * kWidth + kPositions * kWidth + kLayers * (12 * kWidth * kWidth + 13 * kWidth) +
                            2 * kWidth + (tied ? 0 : kWidth * kTokens));
  const torch::Tensor tokens = random_tokens(3);
  const torch::Tensor expected = plain_forward(tokens, weights);
  const auto outputs = stage->forward(0, {tokens});
  ASSERT_TRUE(outputs) << outputs.error().message;
  EXPECT_TRUE(torch::allclose(outputs->front(), expected, 1e-10, 1e-12));

  const torch::Tensor direction = torch::randn_like(expected);
  (expected * direction).sum().backward();
  ASSERT_TRUE(stage->backward(0, {direction}));
  for (const NamedTensor& parameter : stage->parameters()) {
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    EXPECT_TRUE(torch::allclose(parameter.tensor.grad(), weights[parameter.name].grad(), 1e-9, 1e-11))
        << parameter.name;
  }
}

TEST(Transformer, IsWhatItsDefinitionComputes) {
  expect_what_the_definition_says(false);
  expect_what_the_definition_says(true);
}

TEST(Transformer, CountsTiedWeightsWhereTheFirstLayerIs) {
  NetworkSpec spec = small_transformer();
  spec.tied = true;
  auto network = make_network(spec, 7);
  ASSERT_TRUE(network) << network.error().message;
  const auto graph = model_graph(**network);
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_EQ(graph->layers.front().parameters, (kTokens + kPositions) * kWidth);
  EXPECT_EQ(graph->layers.back().parameters, 0);
  EXPECT_EQ(graph->layers.back().kind, model::LayerKind::kFullyConnected);
  EXPECT_EQ(list_layers(**network).back().shared, std::vector<std::string>{kTokenWeights});
}

TEST(Transformer, APositionSeesNothingThatFollowsIt) {
  const auto stage = find_stage(small_transformer());
  stage->train(false);
  torch::manual_seed(5);
  const torch::Tensor tokens = random_tokens(2);
  const torch::Tensor before = stage->forward(0, {tokens})->front();
  for (std::int64_t changed = 0; changed < kPositions; ++changed) {
    torch::Tensor others = tokens.clone();
    others.select(1, changed).add_(1).remainder_(kTokens);
    const torch::Tensor after = stage->forward(0, {others})->front();
    EXPECT_TRUE(torch::equal(after.narrow(1, 0, changed), before.narrow(1, 0, changed))) << changed;
    for (std::int64_t position = changed; position < kPositions; ++position) {
      EXPECT_FALSE(torch::equal(after.select(1, position), before.select(1, position))) << changed;
    }
  }
}

TEST(Transformer, StartsWithGpt2sWeights) {
  NetworkSpec spec = small_transformer();
  spec.width = 128;
  const auto stage = find_stage(spec);
  for (const NamedTensor& parameter : stage->parameters()) {
    const std::string& name = parameter.name;
    if (name.ends_with(".bias")) {
      EXPECT_TRUE(torch::equal(parameter.tensor, torch::zeros_like(parameter.tensor))) << name;
    } else if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(torch::equal(parameter.tensor, torch::ones_like(parameter.tensor))) << name;
    } else {
      const bool adds_to_residual = name.ends_with("projection.weight") || name.ends_with("contract.weight");
      const double expected = 0.02 / (adds_to_residual ? std::sqrt(2.0 * kLayers) : 1);
      EXPECT_NEAR(parameter.tensor.std().item<double>(), expected, 0.15 * expected) << name;
    }
  }
}

TEST(Transformer, DropsValuesInTrainingOnly) {
  NetworkSpec spec = small_transformer();
  const torch::Tensor tokens = random_tokens(2);
  const auto without = find_stage(spec);
  spec.dropout = 0.5;
  const auto with = find_stage(spec);
  const torch::Tensor expected = without->forward(0, {tokens})->front();
  EXPECT_FALSE(torch::allclose(with->forward(0, {tokens})->front(), expected));
  with->train(false);
  EXPECT_TRUE(torch::allclose(with->forward(1, {tokens})->front(), expected));
}

TEST(Transformer, HasItsDefaultsAndItsLayers) {
  NetworkSpec spec = small_transformer();
  spec.layers = spec.width = spec.heads = 0;
  auto network = make_network(spec, 7);
  ASSERT_TRUE(network) << network.error().message;
  std::vector<std::string> names;
  for (const ChainLayer& layer : list_layers(**network)) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("embedding", "block1", "block2", "block3", "block4", "norm", "output"));
  EXPECT_THAT((*network)->parameters().back().tensor.sizes(), ElementsAre(kTokens, 128));
}

TEST(Transformer, RefusesWhatItCannotBe) {
  const auto message = [](NetworkSpec spec, auto change) {
    change(spec);
    const Status status = check_network(spec);
    return status ? std::string("accepted") : status.error().message;
  };
  const NetworkSpec good = small_transformer();
  EXPECT_EQ(message(good, [](NetworkSpec&) {}), "accepted");
  EXPECT_THAT(
      message(good, [](NetworkSpec& spec) { spec.heads = 3; }),
      HasSubstr("model.hidden_size: 8 cannot be divided among 3 heads (model.num_heads); accepted: multiples of 3"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.layers = -1; }), HasSubstr("model.num_layers: -1"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.heads = 1 << 20; }), HasSubstr("accepted: 1 to 65536"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.input_shape = {1, 28, 28}; }),
              HasSubstr("model.input_shape: network 'transformer' takes sequences of token ids, such as [64]; given: "
                        "1x28x28"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.hidden = {4}; }), HasSubstr("model.hidden_sizes"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.norm = "batch"; }), HasSubstr("model.norm"));
  EXPECT_THAT(message(good, [](NetworkSpec& spec) { spec.name = "mlp"; }),
              HasSubstr("model.num_layers: network 'mlp' has no such setting"));
  NetworkSpec tied_mlp;
  tied_mlp.name = "mlp";
  tied_mlp.input_shape = {4};
  tied_mlp.outputs = 2;
  EXPECT_EQ(message(tied_mlp, [](NetworkSpec&) {}), "accepted");
  EXPECT_THAT(message(tied_mlp, [](NetworkSpec& spec) { spec.tied = true; }),
              HasSubstr("model.tie_embeddings: network 'mlp' has no such setting"));
  const auto stage = find_stage(good);
  const auto outside = stage->forward(0, {torch::full({1, kPositions}, double(kTokens))});
  ASSERT_FALSE(outside) << "a token that does not exist";
  EXPECT_EQ(outside.error().code, ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace motley::nn
