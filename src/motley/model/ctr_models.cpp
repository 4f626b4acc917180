// Models whose parameters are mostly rows of sparse tables: what HeterPS plans for. Sizes are those of the
// heterogeneous pipeline examples of PaddleFleetX (Criteo: 26 slots, 13 dense values, a table of 1,000,001 rows of 10
// values), except where a source says that they are ours. Rectifiers belong to the fully connected layers before them,
// and the softmax to the last one. Labels are read where the loss is and are not counted.
#include "motley/model/table_families.h"

#include <fmt/format.h>

namespace motley::model {
namespace {

constexpr int kSlots = 26;
constexpr double kDense = 13;
constexpr double kDimension = 10;  // values of a row
constexpr int kRows = 1'000'001;
constexpr double kIdBytes = 8;
constexpr double kCriteoBytes = kSlots * kIdBytes + kDense * kValueBytes;
constexpr int kFirst = -1;  // reads the model's own input

// Appends layers to a graph and knows how many values each gives, from which the next one's sizes follow.
class Builder {
 public:
  Builder(std::string source, double input_bytes) : graph_{.source = std::move(source), .input_bytes = input_bytes} {}

  // `passed`: values of the model's input that are handed on beside the rows.
  int lookup(const std::string& name, double lookups, double rows, double passed = 0, int input = kFirst,
             double dimension = kDimension) {
    return append({.name = name,
                   .kind = LayerKind::kEmbedding,
                   .lookups = lookups,
                   .row_bytes = dimension * kValueBytes,
                   .table_rows = rows},
                  {input}, lookups * dimension + passed);
  }
  int concatenate(const std::string& name, const std::vector<int>& inputs) {
    double values = 0;
    for (const int input : inputs) {
      values += values_[input];
    }
    return append({.name = name, .kind = LayerKind::kConcatenation}, inputs, values);
  }
  int fully_connected(const std::string& name, int input, double width) {
    return append({.name = name,
                   .kind = LayerKind::kFullyConnected,
                   .parameters = values_[input] * width + width,
                   .flops = 2 * values_[input] * width},
                  {input}, width);
  }
  // A multiply-add for each pair of values, and two more for both lengths.
  int cosine(const std::string& name, int a, int b) {
    return append({.name = name, .kind = LayerKind::kSimilarity, .flops = 6 * values_[a]}, {a, b}, 1);
  }
  int other(const std::string& name, LayerKind kind, const std::vector<int>& inputs, double flops, double values) {
    return append({.name = name, .kind = kind, .flops = flops}, inputs, values);
  }
  Graph take() { return std::move(graph_); }

 private:
  int append(Layer layer, const std::vector<int>& inputs, double values) {
    for (const int input : inputs) {
      if (input != kFirst) {
        layer.inputs.push_back(input);
      }
    }
    layer.activation_bytes = values * kValueBytes;
    values_.push_back(values);
    graph_.layers.push_back(std::move(layer));
    return static_cast<int>(graph_.layers.size()) - 1;
  }

  Graph graph_;
  std::vector<double> values_;
};

// The published network has one lookup of all slots, three fc400 and an fc2. A quarter of the layers are lookups, which
// share the slots and the table's rows; one is the concatenation, one fc2 and one the loss; the rest are fc400.
Graph ctrdnn(int layers) {
  const int lookups = layers / 4;
  const int hidden = layers - lookups - 3;
  Builder builder(
      fmt::format("PaddleFleetX (old_develop), examples/heter_pipeline_ps/network_conf.py: CTRDNN with its 26 "
                  "slots looked up in {} groups and {} hidden layers of 400 (there: one group, three layers), "
                  "so that it has {} layers",
                  lookups, hidden, layers),
      kCriteoBytes);
  std::vector<int> groups;
  int slots_left = kSlots;
  int rows_left = kRows;
  for (int i = 0; i < lookups; ++i) {
    const bool is_last = i == lookups - 1;
    const int slots = is_last ? slots_left : kSlots / lookups;
    const int rows = is_last ? rows_left : kRows / kSlots * slots;
    groups.push_back(builder.lookup(fmt::format("lookup{}", i + 1), slots, rows, is_last ? kDense : 0));
    slots_left -= slots;
    rows_left -= rows;
  }
  int last = builder.concatenate("concat", groups);
  for (int i = 0; i < hidden; ++i) {
    last = builder.fully_connected(fmt::format("fc400-{}", i + 1), last, 400);
  }
  last = builder.fully_connected("fc2", last, 2);
  builder.other("loss", LayerKind::kLoss, {last}, 4, 1);
  return builder.take();
}

Graph two_embeddings() {
  Builder builder("PaddleFleetX (old_develop), examples/heter_pipeline_ps/2emb.py; the loss is part of the last layer",
                  kCriteoBytes);
  int deep = builder.concatenate("concat", {builder.lookup("lookup", kSlots, kRows, kDense)});
  deep = builder.fully_connected("fc400-1", deep, 400);
  deep = builder.fully_connected("fc400-2", deep, 400);
  deep = builder.fully_connected("fc50", deep, 50);
  const int small = builder.fully_connected("fc128", builder.lookup("small-lookup", 5, 100), 128);
  const int joined = builder.concatenate("join", {deep, small});
  builder.fully_connected("fc2-softmax", builder.fully_connected("fc2", joined, 2), 2);
  return builder.take();
}

// The negatives' rows are of the item's table, where they are counted.
Graph matchnet() {
  constexpr int kUserSlots = 12;
  constexpr double kNegatives = 20;
  Builder builder(
      "PaddleFleetX (old_develop), examples/heter_pipeline_ps/matchnet.py; the rows of the user's and the "
      "negatives' lookups come out joined",
      kCriteoBytes);
  const auto tower = [&](const std::string& name, int input) {
    const int first = builder.fully_connected(name + "-fc400-1", input, 400);
    return builder.fully_connected(name + "-fc50", builder.fully_connected(name + "-fc400-2", first, 400), 50);
  };
  const int user = tower("user", builder.lookup("user-lookup", kUserSlots, kRows));
  const int item_rows = builder.lookup("item-lookup", kSlots - kUserSlots, kRows, kDense);
  const int item = tower("item", builder.concatenate("item-concat", {item_rows}));
  const int positive = builder.cosine("positive-cosine", item, user);
  const int chosen = builder.other("softmax-top20", LayerKind::kOther, {item}, 4 * 50, 2 * kNegatives);
  int negative = builder.lookup("negative-lookup", kNegatives, 0, 0, chosen);
  negative = builder.fully_connected("negative-fc400", negative, 400);
  negative = builder.fully_connected("negative-fc50", negative, 50);
  negative = builder.cosine("negative-cosine", negative, user);
  builder.other("hinge", LayerKind::kLoss, {positive, negative}, 3, 1);
  return builder.take();
}

// Predicts a word from four others by noise-contrastive estimation with ten noise words.
Graph nce() {
  constexpr double kContext = 4;
  constexpr double kWidth = 128;
  constexpr double kCandidates = 1 + 10;
  Builder builder(
      "sizes are ours: HeterPS names an NCE model of 5 layers without its sizes; here a context of 4 words, "
      "two tables of 1,000,001 rows of 128 values, 10 noise words",
      (kContext + kCandidates) * kIdBytes);
  const int context = builder.lookup("context-lookup", kContext, kRows, 0, kFirst, kWidth);
  const int hidden = builder.fully_connected("fc128", builder.fully_connected("fc256", context, 256), kWidth);
  const int candidates = builder.lookup("candidate-lookup", kCandidates, kRows, 0, kFirst, kWidth);
  builder.other("nce-loss", LayerKind::kLoss, {hidden, candidates}, 2 * kCandidates * kWidth, 1);
  return builder.take();
}

}  // namespace

const TableFamily& ctr_models() {
  static const TableFamily family = {{"ctrdnn-8", [] { return ctrdnn(8); }},
                                     {"ctrdnn-12", [] { return ctrdnn(12); }},
                                     {"ctrdnn-16", [] { return ctrdnn(16); }},
                                     {"ctrdnn-20", [] { return ctrdnn(20); }},
                                     {"2emb", two_embeddings},
                                     {"matchnet", matchnet},
                                     {"nce", nce}};
  return family;
}

}  // namespace motley::model
