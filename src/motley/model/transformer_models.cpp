// GPT-2 as a chain of attention and MLP layers with their residuals inside, for sequences of its full context of 1024
// tokens: a sample is a sequence.
#include "motley/model/table_families.h"

#include <fmt/format.h>

namespace motley::model {
namespace {

constexpr double kTokens = 1024;
constexpr double kVocabulary = 50257;
constexpr double kTokenBytes = 8;

// Kept inside for the backward pass: of attention its normalized input, queries, keys and values, the softmax of every
// head and the heads' output; of the MLP its normalized input and both sides of the GELU, four times as wide.
Graph gpt2(int blocks, double width, double heads) {
  const double values = kTokens * width;
  const double normalization = 2 * width;
  Graph graph{.source =
                  "Radford et al. 2019, Language Models are Unsupervised Multitask Learners: context of 1024 tokens, "
                  "vocabulary of 50257; the head's matrix is the token embedding, whose parameters are counted "
                  "there, once",
              .input_bytes = kTokens * kTokenBytes};
  const auto append = [&](Layer layer) {
    if (!graph.layers.empty()) {
      layer.inputs = {static_cast<int>(graph.layers.size()) - 1};
    }
    graph.layers.push_back(std::move(layer));
  };
  append({.name = "embedding",
          .kind = LayerKind::kEmbedding,
          .parameters = (kVocabulary + kTokens) * width,
          .activation_bytes = values * kValueBytes,
          .flops = values});
  for (int i = 0; i < blocks; ++i) {
    append({.name = fmt::format("block{}.attention", i),
            .kind = LayerKind::kAttention,
            .parameters = normalization + (3 * width * width + 3 * width) + (width * width + width),
            .activation_bytes = values * kValueBytes,
            .inner_bytes = (5 * values + heads * kTokens * kTokens) * kValueBytes,
            .flops = 2 * values * 4 * width + 4 * kTokens * values});
    append({.name = fmt::format("block{}.mlp", i),
            .kind = LayerKind::kFullyConnected,
            .parameters = normalization + (4 * width * width + 4 * width) + (4 * width * width + width),
            .activation_bytes = values * kValueBytes,
            .inner_bytes = 9 * values * kValueBytes,
            .flops = 2 * values * 8 * width});
  }
  append({.name = "head",
          .kind = LayerKind::kFullyConnected,
          .parameters = normalization,
          .activation_bytes = kTokens * kVocabulary * kValueBytes,
          .inner_bytes = values * kValueBytes,
          .flops = 2 * values * kVocabulary});
  return graph;
}

}  // namespace

const TableFamily& transformer_models() {
  static const TableFamily family = {{"gpt2-small", [] { return gpt2(12, 768, 12); }},
                                     {"gpt2-medium", [] { return gpt2(24, 1024, 16); }}};
  return family;
}

}  // namespace motley::model
