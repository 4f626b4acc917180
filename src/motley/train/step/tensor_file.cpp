#include "motley/train/step/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "motley/serial/safetensors.h"

namespace motley::train {
namespace {

struct TensorType {
  torch::Dtype dtype;
  std::string_view name;
};
constexpr TensorType kTensorTypes[] = {{torch::kFloat32, "F32"},   {torch::kFloat64, "F64"}, {torch::kFloat16, "F16"},
                                       {torch::kBFloat16, "BF16"}, {torch::kInt64, "I64"},   {torch::kInt32, "I32"},
                                       {torch::kInt16, "I16"},     {torch::kInt8, "I8"},     {torch::kUInt8, "U8"},
                                       {torch::kBool, "BOOL"}};

}  // namespace

Result<std::string> encode_tensors(const nn::NamedTensors& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsTensor> entries;
  nn::Tensors on_cpu;  // keeps the bytes alive that the entries refer to
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!names.insert(name).second || name == "__metadata__") {
      return fail(ErrorCode::kInvalidInput, "a tensor cannot be saved as '{}': the name is taken", name);
    }
    const auto* type = std::ranges::find(kTensorTypes, tensor.scalar_type(), &TensorType::dtype);
    if (type == std::end(kTensorTypes)) {
      return fail(ErrorCode::kInvalidInput, "tensor '{}' is of type {}, which safetensors files do not have", name,
                  c10::toString(tensor.scalar_type()));
    }
    const torch::Tensor& saved = on_cpu.emplace_back(tensor.detach().to(torch::kCPU).contiguous());
    entries.push_back({name,
                       std::string(type->name),
                       saved.sizes().vec(),
                       {static_cast<const std::byte*>(saved.const_data_ptr()), saved.nbytes()}});
  }
  return encode_safetensors(entries, metadata);
}

Result<TensorFile> decode_tensors(std::string_view bytes) {
  MOTLEY_ASSIGN(SafetensorsFile parsed, parse_safetensors(std::as_bytes(std::span(bytes))));
  TensorFile file{{}, std::move(parsed.metadata)};
  for (const SafetensorsEntry& entry : parsed.entries) {
    const auto* type = std::ranges::find(kTensorTypes, entry.type, &TensorType::name);
    if (type == std::end(kTensorTypes)) {
      return fail(ErrorCode::kCorrupt, "tensor '{}' is of type {}, which is not read here", entry.name, entry.type);
    }
    MOTLEY_ASSIGN(torch::Tensor tensor, nn::catch_torch(ErrorCode::kCorrupt, "tensor '" + entry.name + "'",
                                                        [&] { return torch::empty(entry.shape, type->dtype); }));
    const std::span<const std::byte> source = parsed.tensor_bytes(entry);
    if (!source.empty()) std::memcpy(tensor.mutable_data_ptr(), source.data(), source.size());
    file.tensors.push_back({entry.name, std::move(tensor)});
  }
  return file;
}

}  // namespace motley::train
