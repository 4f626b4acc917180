// What make_network puts networks together from: layers of our own in sequences, and modules from files.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "motley/nn/networks.h"

namespace motley::nn {

// Layers one after the other, which may stand inside each other: torch::nn::Sequential's own forward is a template and
// cannot.
class LayersImpl : public torch::nn::SequentialImpl {
 public:
  torch::Tensor forward(torch::Tensor input) { return torch::nn::SequentialImpl::forward(std::move(input)); }
};
TORCH_MODULE(Layers);

// A layer that says what it is; what libtorch's layers are follows from their types.
class OwnLayer : public torch::nn::Module {
 public:
  // Of a chain's layer: its kind, what it shares with others, and what it looks up at servers.
  ChainLayer about;
};

// A language model in the manner of GPT-2 (Radford et al. 2019): "embedding", "block1" and so on, "norm", "output",
// with initial weights. The first takes token ids [n, positions] of any type, the last returns values before softmax
// [n, positions, spec.outputs], which say at each position which token comes next.
Status check_transformer(const NetworkSpec& spec);
Layers transformer_layers(const NetworkSpec& spec);
inline constexpr const char* kTokenWeights = "embedding.token.weight";  // a row for each token

// The networks of ctr_models.h.
Status check_ctr_model(const NetworkSpec& spec);
Layers ctr_layers(const NetworkSpec& spec);

// A network from a .pt2 file of torch.export: any Python torch.nn.Module, once `motley export` has written it. Loads it
// on the CPU. `sample_shape` may be empty: then it is the file's, where that fixes all of it, and unknown otherwise.
// Its forward takes the stage's inputs as tensors; ids may be of any type. It does in training and in evaluation what
// the module does, as far as that is a matter of the operators' own settings (dropout, batch normalisation); buffers
// change in training only. Numbers that were made or cast in the type of the file's weights are of the network's type,
// and all tensors are on its device. Its chain is empty where forward takes several inputs or has no place to be cut.
Result<std::unique_ptr<Network>> load_exported_network(const std::filesystem::path& path,
                                                       std::vector<std::int64_t> sample_shape);

}  // namespace motley::nn
