#include "motley/collective/row_form.h"

#include <cstdint>
#include <cstring>

#include "motley/kernels/compress.h"
#include "motley/kernels/convert.h"

namespace motley::collective {

std::size_t RowForm::row_bytes() const {
  switch (type) {
    case WireType::kNative:
      return dimension * sizeof(float);
    case WireType::kInt8:
      return sizeof(float) + dimension;
    default:
      return dimension * sizeof(std::uint16_t);
  }
}

void RowForm::write(std::span<const float> rows, std::byte* frame) const {
  auto* halves = reinterpret_cast<std::uint16_t*>(frame);
  if (type == WireType::kBfloat16) {
    kernels::round_to_bfloat16(rows, halves);
  } else if (type == WireType::kFloat16) {
    kernels::round_to_float16(rows, halves);
  } else if (type == WireType::kInt8) {
    auto* values = reinterpret_cast<std::int8_t*>(frame + rows.size() / dimension * sizeof(float));
    kernels::quantize_int8_blocks(rows, values, reinterpret_cast<float*>(frame), dimension);
  } else if (!rows.empty()) {
    std::memcpy(frame, rows.data(), rows.size_bytes());
  }
}

void RowForm::read(const std::byte* frame, std::span<float> rows) const {
  const std::span halves(reinterpret_cast<const std::uint16_t*>(frame), rows.size());
  if (type == WireType::kBfloat16) {
    kernels::widen_bfloat16(halves, rows.data());
  } else if (type == WireType::kFloat16) {
    kernels::widen_float16(halves, rows.data());
  } else if (type == WireType::kInt8) {
    const auto* values = reinterpret_cast<const std::int8_t*>(frame + rows.size() / dimension * sizeof(float));
    kernels::dequantize_int8_blocks({values, rows.size()}, reinterpret_cast<const float*>(frame), rows.data(),
                                    dimension);
  } else if (!rows.empty()) {
    std::memcpy(rows.data(), frame, rows.size_bytes());
  }
}

}  // namespace motley::collective
