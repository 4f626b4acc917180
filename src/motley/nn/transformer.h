// A language model in the manner of GPT-2 (Radford et al. 2019): it reads a sequence of token ids, and at each position
// says which token comes next, from that position and those before it.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "motley/nn/networks.h"

namespace motley::nn {

// The part of check_network for model.name transformer.
Status check_transformer(const NetworkSpec& spec);

// The layers in their order, with initial weights: "embedding", "block1" and so on, "norm", "output". The first takes
// token ids [n, positions] of any type, the last returns values before softmax [n, positions, spec.outputs].
std::vector<std::pair<std::string, torch::nn::AnyModule>> transformer_layers(const NetworkSpec& spec);

// Whether a layer is an output layer without weights of its own (spec.tied), which reads those of this name.
bool is_tied_output(const torch::nn::Module& layer);
inline constexpr const char* kTokenWeights = "embedding.token.weight";  // a row for each token

}  // namespace motley::nn
