// What is true of every graph of layers: the names of kinds, what makes a graph valid, what a cut must carry, and how
// a long chain is shortened without losing a dependency.
#include "motley/model/graph.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace motley::model {
namespace {

// The last layer that reads each layer's output (-1: none does), and at the end the last that reads the model's input.
std::vector<int> last_readers(const Graph& graph) {
  const int count = static_cast<int>(graph.layers.size());
  std::vector<int> last(graph.layers.size() + 1, -1);
  for (int i = 0; i < count; ++i) {
    const Layer& layer = graph.layers[i];
    for (const int input : layer.inputs) last[input] = i;
    if (layer.inputs.empty()) last[count] = i;
  }
  return last;
}

// What separates two neighbours decides whether they are joined: a cut goes first whose bytes are many for the work on
// its sides, of which the smaller one counts most (half their harmonic mean). Where a sparse layer meets a dense one is
// where plans cut, so those go last.
struct CutCost {
  bool alike = true;  // both sparse or both dense
  double bytes_per_work = 0;
  auto operator<=>(const CutCost&) const = default;
};

struct Block {
  int first = 0;
  int last = 0;
  double work = 0;
  bool sparse = false;
};

std::vector<Block> join_neighbours(const Graph& graph, int most, const std::vector<double>& work) {
  const std::vector<double> cuts = cut_bytes(graph);
  std::vector<Block> blocks;
  for (int i = 0; i < static_cast<int>(graph.layers.size()); ++i) {
    const Layer& layer = graph.layers[i];
    blocks.push_back({i, i, work.empty() ? layer.flops + layer.lookups * layer.row_bytes : work[i], layer.lookups > 0});
  }
  while (static_cast<int>(blocks.size()) > std::max(most, 1)) {
    const auto cut_cost = [&](std::size_t i) {
      const Block& left = blocks[i];
      const Block& right = blocks[i + 1];
      const double separated = left.work > 0 && right.work > 0 ? 1 / (1 / left.work + 1 / right.work) : 0;
      return CutCost{left.sparse == right.sparse,
                     separated > 0 ? cuts[right.first] / separated : std::numeric_limits<double>::infinity()};
    };
    std::size_t costliest = 0;
    for (std::size_t i = 1; i + 1 < blocks.size(); ++i) {
      if (cut_cost(i) > cut_cost(costliest)) costliest = i;
    }
    Block& left = blocks[costliest];
    const Block& right = blocks[costliest + 1];
    left = {left.first, right.last, left.work + right.work, left.sparse || right.sparse};
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(costliest) + 1);
  }
  return blocks;
}

}  // namespace

// As LayerKind has them.
constexpr const char* kKindNames[] = {
    "input",         "embedding",   "fully-connected", "convolution", "pooling",    "normalization", "activation",
    "concatenation", "elementwise", "attention",       "recurrent",   "similarity", "loss",          "block",
    "other"};
static_assert(std::size(kKindNames) == static_cast<std::size_t>(LayerKind::kOther) + 1);

const char* to_string(LayerKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

std::vector<LayerKind> every_value(LayerKind) {
  std::vector<LayerKind> kinds;
  for (std::size_t i = 0; i < std::size(kKindNames); ++i) kinds.push_back(static_cast<LayerKind>(i));
  return kinds;
}

Status validate(const Graph& graph) {
  const auto refused = [&](const std::string& what, const std::string& accepted) {
    return fail(ErrorCode::kInvalidInput, "graph '{}': field {}; accepted {}", graph.name, what, accepted);
  };
  const auto is_size = [](double value) { return std::isfinite(value) && value >= 0; };
  constexpr const char* kSize = "is a finite number, 0 or more";
  if (graph.layers.empty()) return refused("'layers' is empty", "is at least one layer");
  if (!is_size(graph.input_bytes)) return refused(fmt::format("'input_bytes' is {}", graph.input_bytes), kSize);
  std::set<std::string> names;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const Layer& layer = graph.layers[i];
    if (layer.name.empty() || !names.insert(layer.name).second) {
      return refused(fmt::format("'layers[{}].name' is '{}'", i, layer.name), "is a name that no other layer has");
    }
    for (const int input : layer.inputs) {
      if (input < 0 || input >= static_cast<int>(i)) {
        return refused(fmt::format("'layers[{}].inputs' of layer '{}' has {}", i, layer.name, input),
                       fmt::format("are the numbers of earlier layers, 0 or more and below {}", i));
      }
    }
    for (const auto& [field, value] :
         {std::pair("parameters", layer.parameters), std::pair("activation_bytes", layer.activation_bytes),
          std::pair("inner_bytes", layer.inner_bytes), std::pair("flops", layer.flops),
          std::pair("lookups", layer.lookups), std::pair("embedding_row_bytes", layer.row_bytes),
          std::pair("num_embeddings", layer.table_rows)}) {
      if (!is_size(value)) {
        return refused(fmt::format("'layers[{}].{}' of layer '{}' is {}", i, field, layer.name, value), kSize);
      }
    }
  }
  DistinctLookups smaller;
  for (std::size_t i = 0; i < graph.distinct_lookups.size(); ++i) {
    const auto& [batch, share] = graph.distinct_lookups[i];
    if (!(batch > smaller.batch) || !std::isfinite(batch)) {
      return refused(fmt::format("'distinct_lookups[{}].batch_size' is {}", i, batch),
                     fmt::format("is a finite number above {}", smaller.batch));
    }
    const double least = smaller.batch * smaller.share / batch;  // as many rows as the smaller batch
    if (!(share >= least && share <= 1)) {
      return refused(fmt::format("'distinct_lookups[{}].share' is {}", i, share),
                     fmt::format("is a number from {} to 1", least));
    }
    smaller = graph.distinct_lookups[i];
  }
  return {};
}

double distinct_rows(std::span<const DistinctLookups> counted, double samples) {
  if (counted.empty() || samples <= 1) return samples;
  const auto beyond = std::ranges::find_if(counted.first(counted.size() - 1),
                                           [&](const DistinctLookups& one) { return samples <= one.batch; });
  const DistinctLookups low = beyond == counted.begin() ? DistinctLookups{} : *std::prev(beyond);
  const double exponent = std::log(beyond->share / low.share) / std::log(beyond->batch / low.batch);
  return samples * low.share * std::pow(samples / low.batch, exponent);
}

std::vector<double> cut_bytes(const Graph& graph) {
  const std::size_t count = graph.layers.size();
  const std::vector<int> last = last_readers(graph);
  std::vector<double> bytes(count + 1, 0.0);
  for (std::size_t created = 0; created < count; ++created) {
    for (int cut = static_cast<int>(created) + 1; cut <= last[created]; ++cut) {
      bytes[cut] += graph.layers[created].activation_bytes;
    }
  }
  for (int cut = 0; cut <= last[count]; ++cut) bytes[cut] += graph.input_bytes;
  return bytes;
}

// A block's output is those of its layers' outputs that a later block reads, and the model's own output; the rest stay
// inside it. A block that reads both other blocks and the model's input gets that input from the first
// block, whose output then carries it along; so does every other block that reads it.
Graph coarsen(const Graph& graph, int most, std::vector<std::pair<int, int>>* members,
              const std::vector<double>& work) {
  const std::vector<int> last = last_readers(graph);
  const std::vector<Block> blocks = join_neighbours(graph, most, work);
  Graph coarse{.name = graph.name,
               .source = graph.source,
               .input_bytes = graph.input_bytes,
               .layers = {},
               .distinct_lookups = graph.distinct_lookups};
  std::vector<int> block_of;
  std::vector<bool> reads_input(blocks.size(), false);
  bool is_input_carried = false;
  for (const Block& block : blocks) {
    const int number = static_cast<int>(coarse.layers.size());
    Layer joined = graph.layers[block.first];
    joined.inputs.clear();
    if (block.first != block.last) {
      joined = {.name = graph.layers[block.first].name + ".." + graph.layers[block.last].name,
                .kind = LayerKind::kBlock};
    }
    std::set<int> inputs;
    double sparse_bytes = 0;
    for (int i = block.first; i <= block.last; ++i) {
      const Layer& layer = graph.layers[i];
      block_of.push_back(number);
      for (const int input : layer.inputs) {
        if (input < block.first) inputs.insert(block_of[input]);
      }
      reads_input[number] = reads_input[number] || layer.inputs.empty();
      if (block.first == block.last) continue;
      joined.parameters += layer.parameters;
      if (!layer.parameter_shapes.empty()) {
        joined.parameter_shapes += (joined.parameter_shapes.empty() ? "" : ", ") + layer.parameter_shapes;
      }
      joined.flops += layer.flops;
      joined.inner_bytes += layer.inner_bytes;
      const bool leaves = last[i] > block.last || (last[i] < 0 && i == block.last);
      (leaves ? joined.activation_bytes : joined.inner_bytes) += layer.activation_bytes;
      joined.lookups += layer.lookups;
      joined.table_rows += layer.table_rows;
      sparse_bytes += layer.lookups * layer.row_bytes;
    }
    if (block.first != block.last && joined.lookups > 0) joined.row_bytes = sparse_bytes / joined.lookups;
    joined.inputs.assign(inputs.begin(), inputs.end());
    is_input_carried = is_input_carried || (reads_input[number] && !inputs.empty());
    coarse.layers.push_back(std::move(joined));
  }
  if (is_input_carried) {
    coarse.layers.front().activation_bytes += graph.input_bytes;
    for (std::size_t i = 1; i < coarse.layers.size(); ++i) {
      std::vector<int>& inputs = coarse.layers[i].inputs;
      if (reads_input[i] && (inputs.empty() || inputs.front() != 0)) inputs.insert(inputs.begin(), 0);
    }
  }
  if (members != nullptr) {
    members->clear();
    for (const Block& block : blocks) members->emplace_back(block.first, block.last);
  }
  return coarse;
}

}  // namespace motley::model
