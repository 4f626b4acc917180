// The tables give the totals that are published of their models: parameters, and the multiply-adds that torch counts of
// torchvision's networks; and the layers that publications name.
#include "motley/model/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/sum.h"

namespace motley::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

int layer_number(const Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.layers, name, &Layer::name);
  return found == graph.layers.end() ? -1 : static_cast<int>(found - graph.layers.begin());
}

TEST(Tables, AreValidGraphsWithASource) {
  const std::vector<std::string> names = table_names();
  EXPECT_GE(names.size(), 19u);
  for (const std::string& name : names) {
    const auto graph = table(name);
    ASSERT_TRUE(graph) << name;
    EXPECT_TRUE(validate(*graph)) << validate(*graph).error().message;
    EXPECT_EQ(graph->name, name);
    EXPECT_FALSE(graph->source.empty()) << name;
    // Everything but the last layer is read by a later one.
    for (std::size_t i = 0; i + 1 < graph->layers.size(); ++i) {
      EXPECT_TRUE(std::ranges::any_of(graph->layers,
                                      [&](const Layer& layer) {
                                        return std::ranges::find(layer.inputs, static_cast<int>(i)) !=
                                               layer.inputs.end();
                                      }))
          << name << " " << graph->layers[i].name;
    }
  }
  const auto unknown = table("resnet17");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidInput);
  EXPECT_THAT(unknown.error().message, HasSubstr("'resnet17'; accepted are ctrdnn-8,"));
}

// torchvision 0.29 (ResNet-269: its ResNet with 3, 30, 48 and 8 bottlenecks), without auxiliary classifiers; operations
// by torch.utils.flop_counter of one image. GPT-2: the parameters of the published checkpoints.
TEST(Tables, HaveThePublishedTotals) {
  struct Total {
    const char* name;
    double parameters;
    double flops;
  };
  for (const auto& [name, parameters, flops] : {Total{"alexnet", 61'100'840, 1'428'376'960},
                                                {"vgg11", 132'863'336, 15'218'180'096},
                                                {"vgg16", 138'357'544, 30'940'528'640},
                                                {"vgg19", 143'667'240, 39'264'124'928},
                                                {"resnet18", 11'689'512, 3'628'146'688},
                                                {"resnet50", 25'557'032, 8'178'368'512},
                                                {"resnet101", 44'549'160, 15'602'810'880},
                                                {"resnet269", 102'073'384, 40'059'797'504},
                                                {"googlenet", 6'624'904, 2'996'752'384},
                                                {"inception-v3", 23'834'568, 11'426'432'192}}) {
    const Graph graph = *table(name);
    double multiply_adds = 0;
    for (const Layer& layer : graph.layers) {
      multiply_adds +=
          layer.kind == LayerKind::kConvolution || layer.kind == LayerKind::kFullyConnected ? layer.flops : 0;
    }
    EXPECT_EQ(sum(graph, &Layer::parameters), parameters) << name;
    EXPECT_EQ(multiply_adds, flops) << name;
  }
  EXPECT_EQ(sum(*table("gpt2-small"), &Layer::parameters), 124'439'808);
  EXPECT_EQ(sum(*table("gpt2-medium"), &Layer::parameters), 354'823'168);
}

TEST(Tables, HaveTheNamedNumbersOfLayers) {
  for (const auto& [name, layers] :
       {std::pair("ctrdnn-8", 8), std::pair("ctrdnn-12", 12), std::pair("ctrdnn-16", 16), std::pair("ctrdnn-20", 20),
        std::pair("2emb", 10), std::pair("matchnet", 16), std::pair("nce", 5)}) {
    EXPECT_EQ(static_cast<int>(table(name)->layers.size()), layers) << name;
  }
  // Layers with weights that a sample passes in turn: one for each that the name counts, and the skips beside them.
  for (const auto& [name, depth, skips] :
       {std::tuple("resnet18", 18, 3), std::tuple("resnet50", 50, 4), std::tuple("resnet101", 101, 4),
        std::tuple("resnet269", 269, 4), std::tuple("vgg11", 11, 0), std::tuple("vgg16", 16, 0),
        std::tuple("vgg19", 19, 0)}) {
    const Graph graph = *table(name);
    EXPECT_EQ(std::ranges::count_if(graph.layers, [](const Layer& layer) { return layer.parameters > 0; }),
              depth + skips)
        << name;
  }
}

TEST(Tables, CtrModelsHaveTheReferencesSizes) {
  for (const char* name : {"ctrdnn-8", "ctrdnn-12", "ctrdnn-16", "ctrdnn-20"}) {
    const Graph graph = *table(name);
    EXPECT_EQ(sum(graph, &Layer::lookups), 26) << name;
    EXPECT_EQ(sum(graph, &Layer::table_rows), 1'000'001) << name;
    const int concat = layer_number(graph, "concat");
    EXPECT_EQ(graph.layers[concat].activation_bytes, 273 * 4) << name;
    EXPECT_EQ(cut_bytes(graph)[concat], 273 * 4) << name;
    EXPECT_EQ(cut_bytes(graph)[0], 26 * 8 + 13 * 4) << name;
    EXPECT_EQ(graph.layers[concat + 1].parameters, 273 * 400 + 400) << name;
  }
  // The published network is the shortest: three layers of 400 and one of 2.
  EXPECT_EQ(sum(*table("ctrdnn-8"), &Layer::parameters), (273 * 400 + 400) + 2 * (400 * 400 + 400) + (400 * 2 + 2));

  const Graph two = *table("2emb");
  EXPECT_EQ(sum(two, &Layer::parameters),
            (273 * 400 + 400) + (400 * 400 + 400) + (400 * 50 + 50) + (50 * 128 + 128) + (178 * 2 + 2) + (2 * 2 + 2));
  // While the small tower runs, the deep one's 50 values wait beside it; the input is carried up to its lookup.
  const int small = layer_number(two, "small-lookup");
  EXPECT_EQ(cut_bytes(two)[small], 50 * 4 + 260);
  EXPECT_EQ(cut_bytes(two)[small + 1], (50 + 50) * 4);

  const Graph match = *table("matchnet");
  EXPECT_EQ(sum(match, &Layer::lookups), 26 + 20);
  EXPECT_EQ(sum(match, &Layer::table_rows), 2 * 1'000'001);
  EXPECT_EQ(sum(match, &Layer::parameters), (120 * 400 + 400) + (153 * 400 + 400) + 2 * (400 * 400 + 400) +
                                                2 * (400 * 50 + 50) + (200 * 400 + 400) + (400 * 50 + 50));
  // The user's vector waits for the negative's, and the positive's similarity for the loss.
  EXPECT_EQ(cut_bytes(match)[layer_number(match, "negative-cosine")], (50 + 50 + 1) * 4);
}

TEST(Tables, CutsOfBranchesCarryThemAll) {
  const Graph residual = *table("resnet18");
  const double image = 56 * 56 * 64 * 4;
  const int first = layer_number(residual, "block1-1.conv1");
  const std::vector<double> cuts = cut_bytes(residual);
  EXPECT_EQ(cuts[first], image);
  EXPECT_EQ(cuts[first + 1], 2 * image);
  EXPECT_EQ(cuts[first + 2], 2 * image);
  EXPECT_EQ(cuts[first + 3], image);

  const Graph inception = *table("googlenet");
  const int concat = layer_number(inception, "inception3a.concat");
  EXPECT_EQ(cut_bytes(inception)[concat], (64 + 128 + 32 + 32) * 28 * 28 * 4);
  EXPECT_EQ(cut_bytes(inception)[concat - 1], (64 + 128 + 32 + 192) * 28 * 28 * 4);
}

TEST(Tables, AttentionGrowsWithTheSquareOfTheTokens) {
  const Graph graph = *table("gpt2-small");
  EXPECT_EQ(graph.layers.size(), 1 + 2 * 12 + 1u);
  const Layer& attention = graph.layers[1];
  const double tokens = 1024;
  EXPECT_EQ(attention.flops, 2 * tokens * 768 * 768 * 4 + 2 * 2 * tokens * tokens * 768);
  EXPECT_EQ(attention.activation_bytes, tokens * 768 * 4);
  EXPECT_EQ(attention.inner_bytes, (tokens * 768 * 5 + 12 * tokens * tokens) * 4);
  const std::vector<double> cuts = cut_bytes(graph);
  EXPECT_EQ(*std::max_element(cuts.begin() + 1, cuts.end()), tokens * 768 * 4);
}

}  // namespace
}  // namespace motley::model
