// Rows by id, pulled and pushed in batches: what a table offers, what a connection to one offers, and what a cache
// stands before.
#pragma once

#include <cstdint>
#include <span>

#include "motley/base/result.h"

namespace motley::exchange {

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Writes the weights of ids[i] to rows[i * dimension, (i + 1) * dimension). Ids may repeat.
  virtual Status pull(std::span<const std::uint64_t> ids, std::span<float> rows) = 0;
  // Gradients as rows above; those of one id are summed in their order, and its optimizer runs once. On an error
  // nothing of the push was applied.
  virtual Status push(std::span<const std::uint64_t> ids, std::span<const float> gradients) = 0;
};

}  // namespace motley::exchange
