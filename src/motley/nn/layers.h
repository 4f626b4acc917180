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

// A network from a TorchScript file: any Python torch.nn.Module, once tools/motley-export has written it. Loads it on
// the CPU. `sample_shape` may be empty: then inputs are not checked before they reach the module. Its forward takes the
// stage's inputs as tensors and returns a tensor, or a tuple or list of tensors. Its chain is empty where forward takes
// several inputs or has no place to be cut.
Result<std::unique_ptr<Network>> load_script_network(const std::filesystem::path& path,
                                                     std::vector<std::int64_t> sample_shape);

}  // namespace motley::nn
