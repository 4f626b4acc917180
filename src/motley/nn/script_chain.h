// Finds the layers that a TorchScript module applies one after the other, from its program.
#pragma once

#include <torch/script.h>

#include <vector>

#include "motley/nn/stage.h"

namespace motley::nn {

// Empty where the module's forward is no chain: where it takes several inputs, or has no place to be cut. Submodules
// that hold others are looked into, so that nested torch.nn.Sequential come out flat. What lies between two places
// where a single tensor is alive is one layer, such as a residual block, or several that hand on what goes around them,
// where it calls several submodules that have submodules (of a network that would be one layer: that have parameters).
std::vector<ChainLayer> chain_of(const torch::jit::Module& module);

}  // namespace motley::nn
