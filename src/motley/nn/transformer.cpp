// The transformer. Blocks normalise what they read and not what they pass on (pre-norm), so that what goes around them
// is never changed. Initial weights are GPT-2's.
#include <cmath>
#include <limits>
#include <tuple>

#include "motley/nn/layers.h"

namespace motley::nn {
namespace {

constexpr double kInitialDeviation = 0.02;

struct Size {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
};

Size read_size(const NetworkSpec& spec) {
  return {spec.layers == 0 ? 4 : spec.layers, spec.width == 0 ? 128 : spec.width, spec.heads == 0 ? 4 : spec.heads};
}

torch::nn::Linear linear(std::int64_t from, std::int64_t to, double deviation = kInitialDeviation) {
  torch::nn::Linear layer(from, to);
  torch::nn::init::normal_(layer->weight, 0, deviation);
  torch::nn::init::zeros_(layer->bias);
  return layer;
}

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

// A vector for each token and one for each position, added.
class TokenEmbedding : public torch::nn::Module {
 public:
  TokenEmbedding(std::int64_t tokens, std::int64_t positions, std::int64_t width, double dropout)
      : token_(register_module("token", torch::nn::Embedding(tokens, width))),
        position_(register_parameter("position", torch::empty({positions, width}))),
        dropout_(dropout) {
    torch::nn::init::normal_(token_->weight, 0, kInitialDeviation);
    torch::nn::init::normal_(position_, 0, kInitialDeviation);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor values = token_->forward(tokens.to(torch::kInt64)) + position_;
    return is_training() ? sample_dropout(values, dropout_, 0) : values;
  }

  const torch::Tensor& token_weights() const { return token_->weight; }

 private:
  torch::nn::Embedding token_;
  torch::Tensor position_;
  double dropout_;
};

// How well what each position holds fits each token's vector. The embedding is no submodule, so that its weights are
// named once.
class TiedOutput : public OwnLayer {
 public:
  explicit TiedOutput(std::shared_ptr<TokenEmbedding> embedding) : embedding_(std::move(embedding)) {
    about.kind = model::LayerKind::kFullyConnected;
    about.shared = {kTokenWeights};
  }
  torch::Tensor forward(const torch::Tensor& input) { return torch::linear(input, embedding_->token_weights()); }

 private:
  std::shared_ptr<TokenEmbedding> embedding_;
};

// Self-attention, then a network of two layers at each position; both are added to what they read.
class TransformerBlock : public torch::nn::Module {
 public:
  // `number`: from 1.
  TransformerBlock(const Size& size, double dropout, std::int64_t number)
      : heads_(size.heads),
        dropout_(dropout),
        place_(kPlaces * static_cast<std::uint64_t>(number)),
        norm1_(register_module("norm1", layer_norm(size.width))),
        query_key_value_(register_module("query_key_value", linear(size.width, 3 * size.width))),
        projection_(register_module("projection", linear(size.width, size.width, residual_deviation(size)))),
        norm2_(register_module("norm2", layer_norm(size.width))),
        expand_(register_module("expand", linear(size.width, 4 * size.width))),
        contract_(register_module("contract", linear(4 * size.width, size.width, residual_deviation(size)))) {}

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor attended = input + dropped(projection_->forward(attend(norm1_->forward(input))), 1);
    const torch::Tensor inner = torch::gelu(expand_->forward(norm2_->forward(attended)), "tanh");
    return attended + dropped(contract_->forward(inner), 2);
  }

 private:
  // Two layers of every block add to what goes through all blocks: so scaled, the sum's variance does not grow with
  // their number.
  static double residual_deviation(const Size& size) {
    return kInitialDeviation / std::sqrt(2.0 * static_cast<double>(size.layers));
  }

  static constexpr std::uint64_t kPlaces = 3;  // where a block has dropout

  torch::Tensor dropped(const torch::Tensor& values, std::uint64_t place) const {
    return is_training() ? sample_dropout(values, dropout_, place_ + place) : values;
  }

  // What each position takes from itself and those before it, each head from its own part of the width.
  torch::Tensor attend(const torch::Tensor& input) {
    // [n, positions, 3 width] -> query, key and value, each [n, heads, positions, width / heads]
    const std::vector<torch::Tensor> parts =
        query_key_value_->forward(input).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4}).unbind();
    const torch::Tensor mixed =
        is_training() && dropout_ > 0
            ? torch::matmul(dropped(attention_weights(parts[0], parts[1]), 0), parts[2])
            : torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, /*is_causal=*/true);
    return mixed.transpose(1, 2).flatten(2);
  }

  // What each position takes of each one before it, [n, heads, positions, positions], as libtorch's fused attention
  // has it within.
  static torch::Tensor attention_weights(const torch::Tensor& query, const torch::Tensor& key) {
    const torch::Tensor scores =
        torch::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
    const torch::Tensor later =
        torch::ones({query.size(2), query.size(2)}, query.options().dtype(torch::kBool)).triu(1);
    return torch::softmax(scores.masked_fill(later, -std::numeric_limits<double>::infinity()), 3);
  }

  std::int64_t heads_;
  double dropout_;
  std::uint64_t place_;
  torch::nn::LayerNorm norm1_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear expand_;
  torch::nn::Linear contract_;
};

}  // namespace

Status check_transformer(const NetworkSpec& spec) {
  if (spec.input_shape.size() != 1) {
    return fail(ErrorCode::kInvalidInput,
                "model.input_shape: network 'transformer' takes sequences of token ids, such as [64]; given: {}",
                spec.input_shape.empty() ? "nothing" : format_shape(spec.input_shape));
  }
  const Size size = read_size(spec);
  constexpr std::int64_t kMaxLayers = 1000;
  constexpr std::int64_t kMaxWidth = 65536;
  for (const auto& [key, value, most] :
       {std::tuple("num_layers", size.layers, kMaxLayers), std::tuple("hidden_size", size.width, kMaxWidth),
        std::tuple("num_heads", size.heads, kMaxWidth)}) {
    if (value < 1 || value > most) {
      return fail(ErrorCode::kInvalidInput, "model.{}: {} is not accepted; accepted: 1 to {}, or 0 for the default",
                  key, value, most);
    }
  }
  if (size.width % size.heads != 0) {
    return fail(ErrorCode::kInvalidInput,
                "model.hidden_size: {} cannot be divided among {} heads (model.num_heads); accepted: multiples of {}",
                size.width, size.heads, size.heads);
  }
  return {};
}

Layers transformer_layers(const NetworkSpec& spec) {
  const Size size = read_size(spec);
  Layers layers;
  const auto embedding =
      std::make_shared<TokenEmbedding>(spec.outputs, spec.input_shape.front(), size.width, spec.dropout);
  layers->push_back("embedding", embedding);
  for (std::int64_t block = 1; block <= size.layers; ++block) {
    layers->push_back(fmt::format("block{}", block), TransformerBlock(size, spec.dropout, block));
  }
  layers->push_back("norm", layer_norm(size.width));
  if (spec.tied) {
    layers->push_back("output", TiedOutput(embedding));
    return layers;
  }
  torch::nn::Linear output(torch::nn::LinearOptions(size.width, spec.outputs).bias(false));
  torch::nn::init::normal_(output->weight, 0, kInitialDeviation);
  layers->push_back("output", output);
  return layers;
}

}  // namespace motley::nn
