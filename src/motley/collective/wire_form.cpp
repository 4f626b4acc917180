// Frames are written and read by the kernels; here is where their parts lie.
#include "motley/collective/wire_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "motley/base/result.h"
#include "motley/kernels/convert.h"

namespace motley::collective {
namespace {

using kernels::kInt8Block;

std::size_t scale_bytes(std::size_t count) {
  return kernels::int8_blocks(count) * sizeof(float);
}

// visit(first element, its values as float32) for each block of a frame of int8.
template <class Visit>
void each_block(const std::byte* frame, std::size_t count, Visit visit) {
  const auto* scales = reinterpret_cast<const float*>(frame);
  const auto* bytes = reinterpret_cast<const std::int8_t*>(frame + scale_bytes(count));
  alignas(64) std::array<float, kInt8Block> restored;
  for (std::size_t begin = 0; begin < count; begin += kInt8Block) {
    const std::size_t length = std::min(kInt8Block, count - begin);
    kernels::dequantize_int8_blocks({bytes + begin, length}, scales + begin / kInt8Block, restored.data());
    visit(begin, std::span<const float>(restored).first(length));
  }
}

}  // namespace

std::size_t WireForm::kept(std::size_t count) const {
  const auto share = static_cast<std::size_t>(std::ceil(density * static_cast<double>(count)));
  return std::clamp<std::size_t>(share, 1, count);
}

std::size_t WireForm::frame_bytes(std::size_t count) const {
  if (type == WireType::kInt8) return scale_bytes(count) + count;
  if (type == WireType::kTopK) return kept(count) * (sizeof(std::uint32_t) + sizeof(float));
  return count * kernels::byte_size(format());
}

kernels::WireFormat WireForm::format() const {
  MOTLEY_INVARIANT(type <= WireType::kFloat16, "{} is no format of single values", to_string(*this));
  return static_cast<kernels::WireFormat>(type);  // both begin with float32, bfloat16, float16
}

void WireForm::compress(std::span<float> values, std::byte* frame) const {
  const std::size_t count = values.size();
  if (type == WireType::kInt8) {
    auto* bytes = reinterpret_cast<std::int8_t*>(frame + scale_bytes(count));
    kernels::quantize_int8_blocks(values, bytes, reinterpret_cast<float*>(frame));
    each_block(frame, count, [&](std::size_t begin, std::span<const float> restored) {
      for (std::size_t e = 0; e < restored.size(); ++e) values[begin + e] -= restored[e];
    });
    return;
  }
  const std::size_t selected = kept(count);
  auto* indices = reinterpret_cast<std::uint32_t*>(frame);
  auto* sent = reinterpret_cast<float*>(frame + selected * sizeof(std::uint32_t));
  kernels::select_largest(values, selected, indices);
  for (std::size_t i = 0; i < selected; ++i) {
    sent[i] = values[indices[i]];
    values[indices[i]] = 0;
  }
}

bool WireForm::add(const std::byte* frame, float coefficient, std::span<float> values) const {
  if (type == WireType::kInt8) {
    each_block(frame, values.size(), [&](std::size_t begin, std::span<const float> restored) {
      for (std::size_t e = 0; e < restored.size(); ++e) values[begin + e] += coefficient * restored[e];
    });
    return true;
  }
  const std::size_t selected = kept(values.size());
  const std::span indices(reinterpret_cast<const std::uint32_t*>(frame), selected);
  return kernels::scatter_add(indices, reinterpret_cast<const float*>(indices.data() + selected), coefficient, values);
}

kernels::WireInput WireForm::input(const std::byte* frame, std::size_t count, std::size_t begin) const {
  return {.values = frame + scale_bytes(count) + begin,
          .scales = reinterpret_cast<const float*>(frame) + begin / kInt8Block};
}

WireForm WireForm::answer(int ranks, const kernels::UpdateOptions& update) const {
  if (type != WireType::kTopK) return *this;
  const bool sparse = update.rule == kernels::UpdateRule::kSum ||
                      (update.rule == kernels::UpdateRule::kSgd && update.weight_decay == 0);
  const WireForm denser{WireType::kTopK, std::min(density * ranks, kLargestDensity)};
  const WireForm dense{WireType::kInt8};
  constexpr std::size_t kMany = std::size_t{1} << 20;
  return sparse && denser.frame_bytes(kMany) < dense.frame_bytes(kMany) ? denser : dense;
}

std::string to_string(const WireForm& form) {
  if (form.type == WireType::kTopK) return fmt::format("top-k of {:.6g}", form.density);
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int8", "top-k", "auto"};
  return kNames[static_cast<int>(form.type)];
}

}  // namespace motley::collective
