// A network from a TorchScript file: any Python torch.nn.Module, once tools/motley-export has written it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "motley/nn/stage.h"

namespace motley::nn {

// Loads the module on the CPU. `sample_shape` may be empty: then inputs are not checked before they reach the module.
// Its forward takes the stage's inputs as tensors and returns a tensor, or a tuple or list of tensors.
Result<std::unique_ptr<Network>> load_script_network(const std::filesystem::path& path,
                                                     std::vector<std::int64_t> sample_shape);

}  // namespace motley::nn
