// Finds the layers that a TorchScript module applies one after the other, from its program.
#pragma once

#include <torch/script.h>

#include <vector>

#include "motley/learn/stage.h"

namespace motley::learn {

// Empty where the module's forward is no chain: where it takes several inputs, or has no place at which a single tensor
// is all that later computation reads. Submodules that hold others are looked into, so that nested torch.nn.Sequential
// come out flat; what lies between two places where a single tensor is alive is one layer, such as a residual block.
std::vector<ChainLayer> chain_of(const torch::jit::Module& module);

}  // namespace motley::learn
