// Named tensors in safetensors files, which every other framework reads.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "motley/base/result.h"
#include "motley/nn/runtime.h"

namespace motley::nn {

struct TensorFile {
  NamedTensors tensors;  // copies on the CPU, by position in the file
  std::map<std::string, std::string> metadata;
};

// The bytes of a file; tensors may be on any device. Fails for a type that the format does not have.
Result<std::string> encode_tensors(const NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata = {});
Result<TensorFile> decode_tensors(std::string_view bytes);

// The same with files: written whole or not at all; errors name the path.
Status write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                     const std::map<std::string, std::string>& metadata = {});
Result<TensorFile> read_tensors(const std::filesystem::path& path);

}  // namespace motley::nn
