#include "motley/collective/element_type.h"

#include <algorithm>
#include <vector>

#include "motley/kernels/convert.h"
#include "motley/kernels/sum.h"

namespace motley::collective {
namespace {

template <class T>
void sum_in_type(std::span<const std::byte* const> inputs, double scale, std::span<std::byte* const> outputs,
                 std::size_t count) {
  std::vector<const T*> from;
  std::vector<T*> to;
  for (const std::byte* input : inputs) from.push_back(reinterpret_cast<const T*>(input));
  for (std::byte* output : outputs) to.push_back(reinterpret_cast<T*>(output));
  const std::vector<T> ones(inputs.size(), 1);
  kernels::weighted_sum(from, ones, static_cast<T>(scale), to, count);
}

// Block by block, so that what is widened stays in the first-level cache.
void sum_halves(kernels::WireFormat format, std::span<const std::byte* const> inputs, double scale,
                std::span<std::byte* const> outputs, std::size_t count) {
  constexpr std::size_t kBlock = 1024;
  std::vector<float> widened(kBlock * inputs.size());
  std::vector<const float*> from;
  for (std::size_t input = 0; input < inputs.size(); ++input) from.push_back(widened.data() + input * kBlock);
  const std::vector<float> ones(inputs.size(), 1);
  float sum[kBlock];
  float* const to[] = {sum};
  for (std::size_t begin = 0; begin < count; begin += kBlock) {
    const std::size_t length = std::min(kBlock, count - begin);
    for (std::size_t input = 0; input < inputs.size(); ++input) {
      kernels::read_format(format, inputs[input] + 2 * begin, {widened.data() + input * kBlock, length});
    }
    kernels::weighted_sum(from, ones, static_cast<float>(scale), to, length);
    for (std::byte* output : outputs) kernels::write_format(format, {sum, length}, output + 2 * begin);
  }
}

}  // namespace

const char* to_string(ElementType type) {
  constexpr const char* kNames[] = {"float32", "float64", "bfloat16", "float16", "byte"};
  return kNames[static_cast<std::size_t>(type)];
}

void sum_elements(ElementType type, std::span<const std::byte* const> inputs, double scale,
                  std::span<std::byte* const> outputs, std::size_t count) {
  switch (type) {
    case ElementType::kFloat32:
      return sum_in_type<float>(inputs, scale, outputs, count);
    case ElementType::kFloat64:
      return sum_in_type<double>(inputs, scale, outputs, count);
    case ElementType::kBfloat16:
      return sum_halves(kernels::WireFormat::kBfloat16, inputs, scale, outputs, count);
    case ElementType::kFloat16:
      return sum_halves(kernels::WireFormat::kFloat16, inputs, scale, outputs, count);
    case ElementType::kByte:
      break;
  }
}

}  // namespace motley::collective
