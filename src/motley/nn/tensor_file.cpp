#include "motley/nn/tensor_file.h"

#include <cstring>
#include <optional>
#include <set>

#include "motley/base/os/file.h"
#include "motley/serial/safetensors.h"

namespace motley::nn {
namespace {

struct TypeName {
  torch::Dtype dtype;
  const char* name;
};
constexpr TypeName kTypes[] = {{torch::kFloat32, "F32"},   {torch::kFloat64, "F64"}, {torch::kFloat16, "F16"},
                               {torch::kBFloat16, "BF16"}, {torch::kInt64, "I64"},   {torch::kInt32, "I32"},
                               {torch::kInt16, "I16"},     {torch::kInt8, "I8"},     {torch::kUInt8, "U8"},
                               {torch::kBool, "BOOL"}};

}  // namespace

Result<std::string> encode_tensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsTensor> entries;
  Tensors on_cpu;  // keeps the bytes alive that the entries refer to
  std::set<std::string> names;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      return fail(ErrorCode::kInvalidInput, "a tensor cannot be saved as '{}': the name is taken", tensor.name);
    }
    const char* type = nullptr;
    for (const TypeName& known : kTypes) {
      if (known.dtype == tensor.tensor.scalar_type()) {
        type = known.name;
      }
    }
    if (type == nullptr) {
      return fail(ErrorCode::kInvalidInput, "tensor '{}' is of type {}, which safetensors files do not have",
                  tensor.name, c10::toString(tensor.tensor.scalar_type()));
    }
    on_cpu.push_back(tensor.tensor.detach().to(torch::kCPU).contiguous());
    const torch::Tensor& saved = on_cpu.back();
    entries.push_back({tensor.name,
                       type,
                       saved.sizes().vec(),
                       {static_cast<const std::byte*>(saved.const_data_ptr()), saved.nbytes()}});
  }
  return encode_safetensors(entries, metadata);
}

Result<TensorFile> decode_tensors(std::string_view bytes) {
  MOTLEY_ASSIGN(SafetensorsFile parsed, parse_safetensors(std::as_bytes(std::span(bytes))));
  TensorFile file{{}, std::move(parsed.metadata)};
  for (const SafetensorsEntry& entry : parsed.entries) {
    std::optional<torch::Dtype> dtype;
    for (const TypeName& known : kTypes) {
      if (entry.type == known.name) {
        dtype = known.dtype;
      }
    }
    if (!dtype) {
      return fail(ErrorCode::kCorrupt, "tensor '{}' is of type {}, which is not read here", entry.name, entry.type);
    }
    MOTLEY_ASSIGN(torch::Tensor tensor, catch_torch(ErrorCode::kCorrupt, "tensor '" + entry.name + "'",
                                                    [&] { return torch::empty(entry.shape, *dtype); }));
    const std::span<const std::byte> source = parsed.bytes_of(entry);
    if (!source.empty()) {
      std::memcpy(tensor.mutable_data_ptr(), source.data(), source.size());
    }
    file.tensors.push_back({entry.name, std::move(tensor)});
  }
  return file;
}

Status write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                     const std::map<std::string, std::string>& metadata) {
  MOTLEY_ASSIGN(const std::string bytes, encode_tensors(tensors, metadata));
  return write_file(path, bytes);
}

Result<TensorFile> read_tensors(const std::filesystem::path& path) {
  MOTLEY_ASSIGN(const std::string bytes, read_file(path));
  auto file = decode_tensors(bytes);
  if (!file) {
    return fail(file.error().within(path.string()));
  }
  return file;
}

}  // namespace motley::nn
