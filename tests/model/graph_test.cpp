// What a cut must carry and how graphs are shortened, against their definitions on random graphs, and what a graph may
// not be.
#include "motley/model/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tests/model/random_graph.h"
#include "tests/model/sum.h"

namespace motley::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kGraphs = 500;

bool reads(const Layer& layer, int input) {
  return std::ranges::find(layer.inputs, input) != layer.inputs.end();
}

// The definition: all that was made before the cut and is read at or after it.
double carried(const Graph& graph, int cut) {
  const int count = static_cast<int>(graph.layers.size());
  double bytes = 0;
  for (int created = 0; created < cut; ++created) {
    bool is_read = false;
    for (int reader = cut; reader < count; ++reader) {
      is_read = is_read || reads(graph.layers[reader], created);
    }
    bytes += is_read ? graph.layers[created].activation_bytes : 0;
  }
  bool is_input_read = false;
  for (int reader = cut; reader < count; ++reader) {
    is_input_read = is_input_read || graph.layers[reader].inputs.empty();
  }
  return bytes + (is_input_read ? graph.input_bytes : 0);
}

TEST(Graph, KindsHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const LayerKind kind : every_value(LayerKind{})) names.insert(to_string(kind));
  EXPECT_EQ(names.size(), 15u);
  EXPECT_EQ(to_string(LayerKind::kInput), std::string("input"));
  EXPECT_EQ(to_string(LayerKind::kOther), std::string("other"));
}

TEST(Graph, CutCarriesSkipsAndTheModelsInput) {
  // a -> b -> c -> d with a skip a -> d; c also needs nothing of the input, d's branch e reads the input anew.
  const Graph graph{.name = "skip",
                    .input_bytes = 100,
                    .layers = {{.name = "a", .activation_bytes = 1},
                               {.name = "b", .inputs = {0}, .activation_bytes = 2},
                               {.name = "c", .inputs = {1}, .activation_bytes = 4},
                               {.name = "d", .inputs = {0, 2}, .activation_bytes = 8},
                               {.name = "e", .activation_bytes = 16},
                               {.name = "f", .inputs = {3, 4}, .activation_bytes = 32}}};
  EXPECT_THAT(cut_bytes(graph), ElementsAre(100, 101, 103, 105, 108, 24, 0));
}

TEST(Graph, CutBytesFollowTheirDefinition) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = random_graph(seed);
    const std::vector<double> bytes = cut_bytes(graph);
    ASSERT_EQ(bytes.size(), graph.layers.size() + 1);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      ASSERT_EQ(bytes[cut], carried(graph, static_cast<int>(cut))) << "seed " << seed << " cut " << cut;
    }
  }
}

TEST(Graph, CoarseningKeepsSumsAndDependencies) {
  int carried_inputs = 0;
  for (int seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = random_graph(seed);
    const int most = 1 + seed % 7;
    std::vector<std::pair<int, int>> members;
    const Graph coarse = coarsen(graph, most, &members);
    SCOPED_TRACE(fmt::format("seed {} most {}", seed, most));
    ASSERT_TRUE(validate(coarse)) << validate(coarse).error().message;
    ASSERT_EQ(coarse.layers.size(), std::min<std::size_t>(most, graph.layers.size()));
    ASSERT_EQ(members.size(), coarse.layers.size());
    std::vector<int> block_of;
    for (std::size_t block = 0; block < members.size(); ++block) {
      ASSERT_EQ(members[block].first, static_cast<int>(block_of.size()));
      block_of.resize(members[block].second + 1, static_cast<int>(block));
    }
    ASSERT_EQ(block_of.size(), graph.layers.size());

    for (double Layer::* member : {&Layer::parameters, &Layer::flops, &Layer::lookups, &Layer::table_rows}) {
      ASSERT_EQ(sum(coarse, member), sum(graph, member));
    }
    double sparse_bytes = 0;
    for (const Layer& layer : coarse.layers) {
      sparse_bytes += layer.lookups * layer.row_bytes;
    }
    ASSERT_NEAR(sparse_bytes, sum(graph, &Layer::lookups) * 40, 1e-9);
    ASSERT_EQ(coarse.distinct_lookups, graph.distinct_lookups);

    // Every dependency is there, and none that was not (but of the model's input, which block 0 may hand on).
    std::set<std::pair<int, int>> edges;
    std::set<int> read_input;
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      for (const int input : graph.layers[i].inputs) {
        if (block_of[input] != block_of[i]) {
          edges.emplace(block_of[input], block_of[i]);
        }
      }
      if (graph.layers[i].inputs.empty()) {
        read_input.insert(block_of[i]);
      }
    }
    bool is_handed_on = false;
    for (const int block : read_input) {
      is_handed_on = is_handed_on || !coarse.layers[block].inputs.empty();
    }
    carried_inputs += is_handed_on ? 1 : 0;
    for (int block = 0; block < static_cast<int>(coarse.layers.size()); ++block) {
      for (int input = 0; input < block; ++input) {
        const bool through_first = is_handed_on && input == 0 && read_input.contains(block);
        ASSERT_EQ(reads(coarse.layers[block], input), edges.contains({input, block}) || through_first);
      }
    }
    ASSERT_EQ(sum(coarse, &Layer::activation_bytes) + sum(coarse, &Layer::inner_bytes),
              sum(graph, &Layer::activation_bytes) + sum(graph, &Layer::inner_bytes) +
                  (is_handed_on ? graph.input_bytes : 0));

    const std::vector<double> bytes = cut_bytes(coarse);
    for (std::size_t block = 0; block < members.size(); ++block) {
      ASSERT_GE(bytes[block], carried(graph, members[block].first));
    }
  }
  EXPECT_GT(carried_inputs, 20);
}

// 4 samples read 3 times the rows of one, 16 read 6 times: between them rows grow with the square root of the batch.
TEST(Graph, ARowThatABatchReadsTwiceCountsOnce) {
  const std::vector<DistinctLookups> counted = {{4, 0.75}, {16, 0.375}};
  EXPECT_NEAR(distinct_rows(counted, 4), 3, 1e-12);
  EXPECT_NEAR(distinct_rows(counted, 16), 6, 1e-12);
  EXPECT_NEAR(distinct_rows(counted, 9), 3 * std::sqrt(9.0 / 4), 1e-12);
  EXPECT_NEAR(distinct_rows(counted, 64), 12, 1e-12);
  EXPECT_NEAR(distinct_rows(counted, 2), std::sqrt(3), 1e-12);
  EXPECT_EQ(distinct_rows(counted, 1), 1);
  EXPECT_EQ(distinct_rows(counted, 0.25), 0.25);
  EXPECT_EQ(distinct_rows({}, 9), 9);
  for (int seed = 0; seed < 100; ++seed) {
    const Graph graph = random_graph(static_cast<std::uint64_t>(seed));
    double before = 0;
    for (double samples = 0.5; samples < 3000; samples *= 1.1) {
      const double rows = distinct_rows(graph.distinct_lookups, samples);
      ASSERT_GE(rows, before * (1 - 1e-12));
      ASSERT_LE(rows, samples * (1 + 1e-12));
      before = rows;
    }
  }
}

TEST(Graph, CoarseningJoinsTheDearestPairFirst) {
  for (int seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = random_graph(seed);
    std::vector<double> work;
    Random random(seed + 1'000'000);
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      work.push_back(1.0 + random.below(50));
    }
    std::vector<std::pair<int, int>> before;
    coarsen(graph, static_cast<int>(graph.layers.size()), &before, work);
    for (int most = static_cast<int>(graph.layers.size()) - 1; most >= 1; --most) {
      std::vector<std::pair<int, int>> after;
      coarsen(graph, most, &after, work);
      const auto total = [&](std::pair<int, int> block) {
        double value = 0;
        for (int i = block.first; i <= block.second; ++i) {
          value += work[i];
        }
        return value;
      };
      const auto is_sparse = [&](std::pair<int, int> block) {
        return std::any_of(graph.layers.begin() + block.first, graph.layers.begin() + block.second + 1,
                           [](const Layer& layer) { return layer.lookups > 0; });
      };
      // The pair that is gone is at least as dear as each one that could have gone.
      const auto cut_cost = [&](std::size_t i) {
        const double price = carried(graph, before[i + 1].first) * (1 / total(before[i]) + 1 / total(before[i + 1]));
        return std::pair(is_sparse(before[i]) == is_sparse(before[i + 1]), price);
      };
      std::size_t joined = 0;
      while (joined < after.size() && after[joined] == before[joined]) {
        ++joined;
      }
      ASSERT_LT(joined + 1, before.size());
      ASSERT_EQ(after[joined], std::pair(before[joined].first, before[joined + 1].second));
      for (std::size_t i = 0; i + 1 < before.size(); ++i) {
        ASSERT_GE(cut_cost(joined).first, cut_cost(i).first) << "seed " << seed;
        if (cut_cost(joined).first == cut_cost(i).first) {
          ASSERT_GE(cut_cost(joined).second, cut_cost(i).second * (1 - 1e-12)) << "seed " << seed;
        }
      }
      before = after;
    }
  }
}

TEST(Graph, CoarseningKeepsTheShapesOfParametersInTheirOrder) {
  const Graph graph{.name = "three",
                    .layers = {{.name = "a", .parameter_shapes = "8x4, 8"},
                               {.name = "b", .inputs = {0}},
                               {.name = "c", .inputs = {1}, .parameter_shapes = "2x8"}}};
  EXPECT_EQ(coarsen(graph, 1).layers[0].parameter_shapes, "8x4, 8, 2x8");
}

TEST(Graph, CoarseningLeavesShortGraphsAlone) {
  const Graph graph = random_graph(7);
  EXPECT_EQ(coarsen(graph, 1000), graph);
}

TEST(Graph, RefusesWhatIsNoGraph) {
  const Graph good{.name = "good", .input_bytes = 1, .layers = {{.name = "a"}, {.name = "b", .inputs = {0}}}};
  ASSERT_TRUE(validate(good));
  const auto message = [&](auto change) {
    Graph graph = good;
    change(graph);
    const Status status = validate(graph);
    return status ? "accepted" : status.error().message;
  };
  EXPECT_THAT(message([](Graph& graph) { graph.layers.clear(); }), HasSubstr("'layers' is empty"));
  EXPECT_THAT(message([](Graph& graph) { graph.layers[1].name = "a"; }), HasSubstr("'layers[1].name' is 'a'"));
  EXPECT_THAT(message([](Graph& graph) { graph.layers[0].name = ""; }), HasSubstr("'layers[0].name' is ''"));
  EXPECT_THAT(message([](Graph& graph) { graph.layers[0].inputs = {1}; }), HasSubstr("layer 'a' has 1"));
  EXPECT_THAT(message([](Graph& graph) { graph.layers[1].inputs = {1}; }), HasSubstr("layer 'b' has 1"));
  EXPECT_THAT(message([](Graph& graph) { graph.layers[1].inputs = {-1}; }), HasSubstr("has -1; accepted are"));
  EXPECT_THAT(message([](Graph& graph) { graph.input_bytes = -2; }), HasSubstr("'input_bytes' is -2"));
  for (const auto& [name, member] :
       {std::pair("parameters", &Layer::parameters), std::pair("activation_bytes", &Layer::activation_bytes),
        std::pair("inner_bytes", &Layer::inner_bytes), std::pair("flops", &Layer::flops),
        std::pair("lookups", &Layer::lookups), std::pair("embedding_row_bytes", &Layer::row_bytes),
        std::pair("num_embeddings", &Layer::table_rows)}) {
    for (const double value :
         {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      EXPECT_THAT(message([&](Graph& graph) { graph.layers[1].*member = value; }),
                  HasSubstr(fmt::format("'layers[1].{}' of layer 'b' is {}; accepted", name, value)));
    }
  }
}

}  // namespace
}  // namespace motley::model
