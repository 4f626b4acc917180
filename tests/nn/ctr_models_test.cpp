// CTR models compute what their definitions say, written out here in plain operations, whoever has the rows; and
// the area under the curve is the one that sorting gives.
#include "motley/nn/ctr_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "motley/nn/loss.h"
#include "motley/nn/model_graph.h"
#include "motley/nn/network_part.h"

namespace motley::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr std::int64_t kFeatures = 3, kDimension = 4, kRows = 50;

NetworkSpec make_spec(const std::string& name, bool served) {
  NetworkSpec spec;
  spec.name = name;
  spec.input_shape = {kFeatures};
  spec.categories = name == "nce" ? 7 : 14;
  spec.outputs = name == "nce" ? 3 : 2;
  spec.dimension = kDimension;
  spec.rows = kRows;
  spec.served_rows = served;
  spec.dtype = "float64";
  return spec;
}

struct Samples {
  torch::Tensor features;
  std::vector<std::uint64_t> ids;
  torch::Tensor numbers;  // ids folded into the rows, [n, categories]
};

Samples make_samples(const NetworkSpec& spec, std::int64_t count) {
  Samples samples;
  samples.features = torch::randn({count, kFeatures});
  samples.numbers = torch::randint(kRows, {count, spec.categories}, torch::kInt64);
  for (std::int64_t i = 0; i < samples.numbers.numel(); ++i) {
    // Ids of any size stand for the row that remains when they are divided.
    const auto number = static_cast<std::uint64_t>(samples.numbers.view({-1})[i].item<std::int64_t>());
    samples.ids.push_back(number + kRows * static_cast<std::uint64_t>(i * 1'000'003'000'017));
  }
  return samples;
}

using Weights = std::map<std::string, torch::Tensor>;

Weights list_weights(Network& network) {
  Weights weights;
  for (const NamedTensor& parameter : network.parameters()) weights[parameter.name] = parameter.tensor;
  return weights;
}

torch::Tensor fully_connected(const torch::Tensor& x, const Weights& weights, const std::string& layer) {
  return torch::matmul(x, weights.at(layer + ".linear.weight").t()) + weights.at(layer + ".linear.bias");
}
torch::Tensor rectified(const torch::Tensor& x, const Weights& weights, const std::string& layer) {
  return fully_connected(x, weights, layer).clamp_min(0);
}
torch::Tensor cosine(const torch::Tensor& a, const torch::Tensor& b) {
  return (a * b).sum(1) / (a.square().sum(1).sqrt() * b.square().sum(1).sqrt()).clamp_min(1e-8);
}

// `rows`: [n, categories, dimension].
torch::Tensor reference(const NetworkSpec& spec, const Weights& weights, const Samples& samples,
                        const torch::Tensor& rows) {
  const torch::Tensor features = samples.features.to(torch::kFloat64);
  const auto joined = [&](std::int64_t first, std::int64_t count) {
    return rows.narrow(1, first, count).reshape({rows.size(0), -1});
  };
  if (spec.name == "matchnet") {
    const auto tower = [&](const std::string& prefix, const torch::Tensor& input) {
      torch::Tensor values = rectified(input, weights, prefix + "fc1");
      values = rectified(values, weights, prefix + "fc2");
      return weights.contains(prefix + "fc3.linear.bias") ? rectified(values, weights, prefix + "fc3") : values;
    };
    const torch::Tensor user = tower("user_", joined(0, 12));
    const torch::Tensor item = tower("item_", torch::cat({features, joined(12, spec.categories - 12)}, 1));
    const torch::Tensor largest = std::get<1>(item.topk(20, 1));
    const torch::Tensor others = weights.at("match.negatives").index_select(0, largest.reshape({-1}));
    const torch::Tensor negative = tower("negative_", others.view({features.size(0), -1}));
    return torch::stack({cosine(user, negative), cosine(user, item)}, 1);
  }
  if (spec.name == "nce") {
    torch::Tensor predicted = rectified(torch::cat({features, joined(0, 4)}, 1), weights, "fc1");
    predicted = fully_connected(predicted, weights, "fc2");
    return (rows.narrow(1, 4, 3) * predicted.unsqueeze(1)).sum(2);
  }
  torch::Tensor values = torch::cat({features, joined(0, spec.categories)}, 1);
  for (const char* layer : {"fc1", "fc2", "fc3"}) values = rectified(values, weights, layer);
  if (spec.name == "2emb") {
    const torch::Tensor small = samples.numbers.narrow(1, 0, 5).remainder(kSmallTableRows);
    const torch::Tensor looked_up = weights.at("small_lookup.weight").index_select(0, small.reshape({-1}));
    values = torch::cat({values, rectified(looked_up.view({features.size(0), -1}), weights, "small_fc")}, 1);
  }
  return fully_connected(values, weights, "output");
}

class CtrModels : public ::testing::TestWithParam<const char*> {};

TEST_P(CtrModels, ComputesWhatItsDefinitionSays) {
  torch::manual_seed(3);
  for (const bool served : {false, true}) {
    const NetworkSpec spec = make_spec(GetParam(), served);
    auto network = make_network(spec, 5).value();
    network->to(torch::kCPU, torch::kFloat64);
    const LookupLayout layout = lookup_layout(spec).value();
    const Samples samples = make_samples(spec, 6);
    Weights weights = list_weights(*network);
    torch::Tensor rows;
    if (served) {
      rows = torch::randn({6, spec.categories, kDimension}, torch::kFloat32);
      EXPECT_FALSE(weights.contains("lookup.weight"));
    } else {
      const std::string table = spec.name == std::string("matchnet") ? "lookup.table.weight" : "lookup.weight";
      rows =
          weights.at(table).detach().index_select(0, samples.numbers.view({-1})).view({6, spec.categories, kDimension});
    }
    torch::Tensor input = lookup_input(layout, samples.features, samples.ids, rows.flatten(1)).to(torch::kFloat64);
    input.requires_grad_(served);
    torch::Tensor looked_up = rows.to(torch::kFloat64).detach().requires_grad_();
    const torch::Tensor outputs = network->forward({input}).front();
    const torch::Tensor expected = reference(spec, weights, samples, looked_up);
    EXPECT_TRUE(torch::allclose(outputs, expected, 1e-9, 1e-12)) << outputs << expected;

    const torch::Tensor towards = torch::randn_like(outputs);
    (outputs * towards).sum().backward();
    (expected * towards).sum().backward();
    if (served) {
      EXPECT_TRUE(torch::allclose(row_gradients(layout, input.grad()), looked_up.grad().flatten(1), 1e-9, 1e-12));
    } else {
      const std::string table = spec.name == std::string("matchnet") ? "lookup.table.weight" : "lookup.weight";
      torch::Tensor sums = torch::zeros_like(weights.at(table));
      sums.index_add_(0, samples.numbers.view({-1}), looked_up.grad().reshape({-1, kDimension}));
      EXPECT_TRUE(torch::allclose(weights.at(table).grad(), sums, 1e-9, 1e-12));
    }
  }
}

TEST_P(CtrModels, CanBeCutAnywhere) {
  torch::manual_seed(4);
  const NetworkSpec spec = make_spec(GetParam(), true);
  auto whole = make_network(spec, 5).value();
  std::vector<std::string> names;
  for (const ChainLayer& layer : list_layers(*whole)) names.push_back(layer.name);
  const LookupLayout layout = lookup_layout(spec).value();
  const Samples samples = make_samples(spec, 4);
  const torch::Tensor input =
      lookup_input(layout, samples.features, samples.ids, torch::randn({4, spec.categories * kDimension}));
  const torch::Tensor expected = whole->forward({input}).front();
  for (int cut = 1; cut < static_cast<int>(names.size()); ++cut) {
    auto first = take_part(make_network(spec, 5).value(), names, 0, cut - 1);
    auto second = take_part(make_network(spec, 5).value(), names, cut, static_cast<int>(names.size()) - 1);
    ASSERT_TRUE(first && second) << names[static_cast<std::size_t>(cut)];
    const torch::Tensor between = first->network->forward({input}).front();
    EXPECT_TRUE(torch::equal(second->network->forward({between}).front(), expected));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CtrModels, ::testing::Values("ctrdnn", "2emb", "matchnet", "nce"));

TEST(CtrModels, HaveTheSizesOfTheirSources) {
  NetworkSpec spec;
  spec.name = "ctrdnn";
  spec.input_shape = {13};
  spec.categories = 26;
  spec.outputs = 2;
  spec.served_rows = true;
  const auto network = make_network(spec, 1).value();
  std::int64_t parameters = 0;
  for (const NamedTensor& parameter : network->parameters()) parameters += parameter.tensor.numel();
  EXPECT_EQ(parameters, (273 * 400 + 400) + 2 * (400 * 400 + 400) + (400 * 2 + 2));
  EXPECT_THAT(network->sample_shape(), ElementsAre(273));
}

TEST_P(CtrModels, SayWhichRowsTheyReadOfServers) {
  for (const bool served : {true, false}) {
    const NetworkSpec spec = make_spec(GetParam(), served);
    auto network = make_network(spec, 1);
    ASSERT_TRUE(network) << network.error().message;
    const auto graph = model_graph(**network);
    ASSERT_TRUE(graph) << graph.error().message;
    for (const model::Layer& layer : graph->layers) {
      const bool reads = served && layer.name == "lookup";
      EXPECT_EQ(layer.lookups, reads ? static_cast<double>(spec.categories) : 0) << layer.name;
      EXPECT_EQ(layer.row_bytes, reads ? 4.0 * kDimension : 0) << layer.name;
      EXPECT_EQ(layer.table_rows, reads ? static_cast<double>(kRows) : 0) << layer.name;
    }
  }
}

TEST(CtrModels, RefuseWhatTheyCannotBe) {
  const auto message = [](const NetworkSpec& spec) {
    const auto created = make_network(spec, 1);
    return created ? std::string("accepted") : created.error().message;
  };
  NetworkSpec spec = make_spec("matchnet", false);
  spec.categories = 12;
  EXPECT_THAT(message(spec), HasSubstr("of which the data has 12; accepted: 13 or more"));
  spec = make_spec("ctrdnn", false);
  spec.rows = kMaxOwnRows + 1;
  EXPECT_THAT(message(spec), HasSubstr("embedding.num_embeddings: 16777217"));
  spec.served_rows = true;
  EXPECT_EQ(message(spec), "accepted");
  spec = make_spec("nce", false);
  spec.outputs = 2;
  EXPECT_THAT(message(spec), HasSubstr("model.outputs: 2"));
  spec = make_spec("ctrdnn", false);
  spec.norm = "batch";
  EXPECT_THAT(message(spec), HasSubstr("model.norm"));
}

// Every pair of a sample of each class, one after the other.
double area_of_pairs(const std::vector<double>& scores, const std::vector<std::int64_t>& classes) {
  double ordered = 0, pairs = 0;
  for (std::size_t a = 0; a < scores.size(); ++a) {
    for (std::size_t b = 0; b < scores.size(); ++b) {
      if (classes[a] != 1 || classes[b] != 0) continue;
      pairs += 1;
      ordered += scores[a] > scores[b] ? 1 : scores[a] == scores[b] ? 0.5 : 0;
    }
  }
  return ordered / pairs;
}

TEST(Auc, IsThatOfAllPairsAndAddsUpOverParts) {
  torch::manual_seed(6);
  for (const Loss loss : {Loss::kCrossEntropy, Loss::kBce}) {
    const std::int64_t width = loss == Loss::kCrossEntropy ? 2 : 1;
    const torch::Tensor outputs = torch::randn({300, width});
    const torch::Tensor targets =
        torch::rand({300, 1}).lt(torch::sigmoid(outputs.narrow(1, width - 1, 1))).to(torch::kInt64);
    const auto metrics = default_metrics(loss, 2);
    ASSERT_THAT(metrics, ElementsAre(Metric::kAccuracy, Metric::kAuc));
    Evaluation whole(loss, metrics), first(loss, metrics), second(loss, metrics);
    const torch::Tensor wanted = loss == Loss::kBce ? targets.to(torch::kFloat32) : targets;
    ASSERT_TRUE(whole.add(outputs, wanted));
    ASSERT_TRUE(first.add(outputs.narrow(0, 0, 101), wanted.narrow(0, 0, 101)));
    ASSERT_TRUE(second.add(outputs.narrow(0, 101, 199), wanted.narrow(0, 101, 199)));
    for (std::size_t i = 0; i < first.totals().size(); ++i) first.totals()[i] += second.totals()[i];

    std::vector<double> scores;
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < 300; ++i) {
      scores.push_back(outputs[i][width - 1].item<double>() - (width == 2 ? outputs[i][0].item<double>() : 0));
      classes.push_back(targets[i][0].item<std::int64_t>());
    }
    const NamedValue value = whole.values().back();
    EXPECT_EQ(value.name, "auc");
    EXPECT_NEAR(value.value, area_of_pairs(scores, classes), 1e-3);
    EXPECT_DOUBLE_EQ(first.values().back().value, value.value);
  }
  // Of more outputs than there are classes in the data there is no area.
  Evaluation wide(Loss::kCrossEntropy, default_metrics(Loss::kCrossEntropy, 2));
  ASSERT_TRUE(wide.add(torch::randn({10, 4}), torch::randint(2, {10, 1}, torch::kInt64)));
  EXPECT_TRUE(std::isnan(wide.values().back().value));
  Evaluation none(Loss::kBce, {Metric::kAuc});
  EXPECT_TRUE(std::isnan(none.values().back().value));
}

}  // namespace
}  // namespace motley::nn
