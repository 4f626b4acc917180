// How rows of a sparse table, weights or gradients, stand in a frame between a rank and a server: as float32, in 16
// bits a value, or as int8 under one scale a row. Rows differ in size by orders of magnitude, so none shares a scale.
#pragma once

#include <cstddef>
#include <span>

#include "motley/collective/exchange.h"

namespace motley::collective {

struct RowForm {
  WireType type = WireType::kNative;  // up to kInt8
  std::size_t dimension = 0;          // values of a row

  static bool accepts(WireType type) { return type <= WireType::kInt8; }
  std::size_t row_bytes() const;
  // Whole rows to a frame of row_bytes() for each, and back. `frame` is aligned to 4 bytes. int8: the rows' scales
  // (float32), then their values.
  void write(std::span<const float> rows, std::byte* frame) const;
  void read(const std::byte* frame, std::span<float> rows) const;
};

}  // namespace motley::collective
