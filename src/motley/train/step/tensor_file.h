// Named tensors as safetensors files, which every other framework reads.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "motley/base/result.h"
#include "motley/nn/runtime.h"

namespace motley::train {

struct TensorFile {
  nn::NamedTensors tensors;  // copies on the CPU, by position in the file
  std::map<std::string, std::string> metadata;
};

// The bytes of a file; tensors may be on any device. Fails for a type that the format does not have.
Result<std::string> encode_tensors(const nn::NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});
Result<TensorFile> decode_tensors(std::string_view bytes);

}  // namespace motley::train
