// The accelerator that tests compute on.
#pragma once

#include <torch/torch.h>

#include <cstdlib>
#include <optional>

#include "motley/nn/runtime.h"

namespace motley::nn {

// The one that MOTLEY_TEST_DEVICE names, else this machine's first; none: tests that need one are skipped.
inline std::optional<torch::Device> find_test_accelerator() {
  const char* const name = std::getenv("MOTLEY_TEST_DEVICE");
  const auto device = parse_device(name == nullptr ? "auto" : name);
  return device && !device->is_cpu() ? std::optional(*device) : std::nullopt;
}

}  // namespace motley::nn
