// The registry of published models, with those whose layers are few: click-through rate and the like, and transformers.
// Sizes of the former are those of the heterogeneous pipeline examples of PaddleFleetX (Criteo: 26 slots, 13 dense
// values, a table of 1,000,001 rows of 10 values), except where a source says that they are ours. Rectifiers belong to
// the fully connected layers before them, and the softmax to the last one. Labels are read where the loss is and are
// not counted.
#include "motley/model/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "motley/model/graph_builder.h"

namespace motley::model {
namespace {

constexpr int kSlots = 26;
constexpr double kDense = 13;
constexpr double kDimension = 10;  // values of a row
constexpr int kRows = 1'000'001;
constexpr double kIdBytes = 8;

class CtrBuilder : public GraphBuilder {
 public:
  explicit CtrBuilder(std::string source, double input_bytes = kSlots * kIdBytes + kDense * kValueBytes)
      : GraphBuilder(std::move(source), {}, input_bytes) {}

  // `passed`: values of the model's input that are handed on beside the rows.
  int lookup(const std::string& name, double lookups, double rows, double passed = 0, int input = kInput,
             double dimension = kDimension) {
    return append({.name = name,
                   .kind = LayerKind::kEmbedding,
                   .lookups = lookups,
                   .row_bytes = dimension * kValueBytes,
                   .table_rows = rows},
                  {input}, {lookups * dimension + passed});
  }
  // Fully connected layers of these names' widths, one after the other.
  int tower(int last, const std::vector<std::pair<std::string, double>>& layers) {
    for (const auto& [name, width] : layers) last = fully_connected(name, last, width);
    return last;
  }
  // A multiply-add for each pair of values, and two more for both lengths.
  int cosine(const std::string& name, int a, int b) {
    return append({.name = name, .kind = LayerKind::kSimilarity, .flops = 6 * shape(a).values()}, {a, b}, {1});
  }
  int other(const std::string& name, LayerKind kind, const std::vector<int>& inputs, double flops, double values) {
    return append({.name = name, .kind = kind, .flops = flops}, inputs, {values});
  }
};

// The published network has one lookup of all slots, three fc400 and an fc2. A quarter of the layers are lookups, which
// share the slots and the table's rows; one is the concatenation, one fc2 and one the loss; the rest are fc400.
Graph ctrdnn(int layers) {
  const int lookups = layers / 4;
  const int hidden = layers - lookups - 3;
  CtrBuilder net(
      fmt::format("PaddleFleetX (old_develop), examples/heter_pipeline_ps/network_conf.py: CTRDNN with its 26 "
                  "slots looked up in {} groups and {} hidden layers of 400 (there: one group, three layers), "
                  "so that it has {} layers",
                  lookups, hidden, layers));
  std::vector<int> groups;
  const int slots = kSlots / lookups, rows = kRows / kSlots * slots;  // of all groups but the last
  for (int i = 1; i < lookups; ++i) groups.push_back(net.lookup(fmt::format("lookup{}", i), slots, rows));
  groups.push_back(net.lookup(fmt::format("lookup{}", lookups), kSlots - (lookups - 1) * slots,
                              kRows - (lookups - 1) * rows, kDense));
  int last = net.concatenation("concat", groups, 0);
  for (int i = 1; i <= hidden; ++i) last = net.fully_connected(fmt::format("fc400-{}", i), last, 400);
  last = net.fully_connected("fc2", last, 2);
  net.other("loss", LayerKind::kLoss, {last}, 4, 1);
  return net.take();
}

Graph two_embeddings() {
  CtrBuilder net("PaddleFleetX (old_develop), examples/heter_pipeline_ps/2emb.py; the loss is part of the last layer");
  const int rows = net.concatenation("concat", {net.lookup("lookup", kSlots, kRows, kDense)}, 0);
  const int deep = net.tower(rows, {{"fc400-1", 400}, {"fc400-2", 400}, {"fc50", 50}});
  const int small = net.fully_connected("fc128", net.lookup("small-lookup", 5, 100), 128);
  net.tower(net.concatenation("join", {deep, small}, 0), {{"fc2", 2}, {"fc2-softmax", 2}});
  return net.take();
}

// The negatives' rows are of the item's table, where they are counted.
Graph matchnet() {
  constexpr int kUserSlots = 12;
  constexpr double kNegatives = 20;
  CtrBuilder net(
      "PaddleFleetX (old_develop), examples/heter_pipeline_ps/matchnet.py; the rows of the user's and the "
      "negatives' lookups come out joined");
  const int user = net.tower(net.lookup("user-lookup", kUserSlots, kRows),
                             {{"user-fc400-1", 400}, {"user-fc400-2", 400}, {"user-fc50", 50}});
  const int item_rows = net.lookup("item-lookup", kSlots - kUserSlots, kRows, kDense);
  const int item = net.tower(net.concatenation("item-concat", {item_rows}, 0),
                             {{"item-fc400-1", 400}, {"item-fc400-2", 400}, {"item-fc50", 50}});
  const int positive = net.cosine("positive-cosine", item, user);
  const int chosen = net.other("softmax-top20", LayerKind::kOther, {item}, 4 * 50, 2 * kNegatives);
  int negative = net.lookup("negative-lookup", kNegatives, 0, 0, chosen);
  negative = net.tower(negative, {{"negative-fc400", 400}, {"negative-fc50", 50}});
  negative = net.cosine("negative-cosine", negative, user);
  net.other("hinge", LayerKind::kLoss, {positive, negative}, 3, 1);
  return net.take();
}

// Predicts a word from four others by noise-contrastive estimation with ten noise words.
Graph nce() {
  constexpr double kContext = 4;
  constexpr double kWidth = 128;
  constexpr double kCandidates = 1 + 10;
  CtrBuilder net(
      "sizes are ours: HeterPS names an NCE model of 5 layers without its sizes; here a context of 4 words, "
      "two tables of 1,000,001 rows of 128 values, 10 noise words",
      (kContext + kCandidates) * kIdBytes);
  const int context = net.lookup("context-lookup", kContext, kRows, 0, CtrBuilder::kInput, kWidth);
  const int hidden = net.tower(context, {{"fc256", 256}, {"fc128", kWidth}});
  const int candidates = net.lookup("candidate-lookup", kCandidates, kRows, 0, CtrBuilder::kInput, kWidth);
  net.other("nce-loss", LayerKind::kLoss, {hidden, candidates}, 2 * kCandidates * kWidth, 1);
  return net.take();
}

// GPT-2 as a chain of attention and MLP layers with their residuals inside, for sequences of its full context of 1024
// tokens: a sample is a sequence. Kept inside for the backward pass: of attention its normalized input, queries, keys
// and values, the softmax of every head and the heads' output; of the MLP its normalized input and both sides of the
// GELU, four times as wide.
Graph gpt2(int blocks, double width, double heads) {
  constexpr double kTokens = 1024;
  constexpr double kVocabulary = 50257;
  constexpr double kTokenBytes = 8;
  const double values = kTokens * width;
  const double normalization = 2 * width;
  GraphBuilder net(
      "Radford et al. 2019, Language Models are Unsupervised Multitask Learners: context of 1024 tokens, "
      "vocabulary of 50257; the head's matrix is the token embedding, whose parameters are counted "
      "there, once",
      {}, kTokens * kTokenBytes);
  int last = net.append({.name = "embedding",
                         .kind = LayerKind::kEmbedding,
                         .parameters = (kVocabulary + kTokens) * width,
                         .flops = values},
                        {GraphBuilder::kInput}, {values});
  for (int i = 0; i < blocks; ++i) {
    last = net.append({.name = fmt::format("block{}.attention", i),
                       .kind = LayerKind::kAttention,
                       .parameters = normalization + (3 * width * width + 3 * width) + (width * width + width),
                       .inner_bytes = (5 * values + heads * kTokens * kTokens) * kValueBytes,
                       .flops = 2 * values * 4 * width + 4 * kTokens * values},
                      {last}, {values});
    last = net.append({.name = fmt::format("block{}.mlp", i),
                       .kind = LayerKind::kFullyConnected,
                       .parameters = normalization + (4 * width * width + 4 * width) + (4 * width * width + width),
                       .inner_bytes = 9 * values * kValueBytes,
                       .flops = 2 * values * 8 * width},
                      {last}, {values});
  }
  net.append({.name = "head",
              .kind = LayerKind::kFullyConnected,
              .parameters = normalization,
              .inner_bytes = values * kValueBytes,
              .flops = 2 * values * kVocabulary},
             {last}, {kTokens * kVocabulary});
  return net.take();
}

const TableFamily& all_models() {
  static const TableFamily all = [] {
    TableFamily family = {{"ctrdnn-8", [] { return ctrdnn(8); }},
                          {"ctrdnn-12", [] { return ctrdnn(12); }},
                          {"ctrdnn-16", [] { return ctrdnn(16); }},
                          {"ctrdnn-20", [] { return ctrdnn(20); }},
                          {"2emb", two_embeddings},
                          {"matchnet", matchnet},
                          {"nce", nce}};
    family.insert(family.end(), convolutional_models().begin(), convolutional_models().end());
    family.emplace_back("gpt2-small", [] { return gpt2(12, 768, 12); });
    family.emplace_back("gpt2-medium", [] { return gpt2(24, 1024, 16); });
    return family;
  }();
  return all;
}

}  // namespace

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : all_models()) names.push_back(name);
  return names;
}

Result<Graph> table(const std::string& name) {
  const auto found = std::ranges::find(all_models(), name, &TableFamily::value_type::first);
  if (found == all_models().end()) {
    return fail(ErrorCode::kInvalidInput, "there is no table of a model '{}'; accepted are {}", name,
                fmt::join(table_names(), ", "));
  }
  Graph graph = found->second();
  graph.name = name;
  return graph;
}

}  // namespace motley::model
