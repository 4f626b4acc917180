// What a row of a sparse table holds, how it begins and how a gradient changes it. Pure functions over one row's
// floats: `dimension` weights, then the optimizer's state of this row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/kernels/sum.h"
#include "motley/ps/protocol/sparse_protocol.h"

namespace motley::ps {

const char* to_string(RowInitializer::Kind kind);
const char* to_string(RowOptimizer::Kind kind);
inline std::vector<RowInitializer::Kind> every_value(RowInitializer::Kind) {
  return {RowInitializer::Kind::kUniform, RowInitializer::Kind::kNormal};
}
inline std::vector<RowOptimizer::Kind> every_value(RowOptimizer::Kind) {
  return {RowOptimizer::Kind::kSgd, RowOptimizer::Kind::kAdagrad, RowOptimizer::Kind::kAdam};
}

// Floats of state beside a row's weights: none for SGD; for Adagrad the sum of the mean squared gradients; for Adam
// both moments and the row's own number of updates, so that a row's fate does not depend on the other rows of its
// shard.
std::size_t state_floats(RowOptimizer::Kind kind, std::size_t dimension);

// Weights drawn from the seed and the id alone, so that a row begins alike on any shard; the state is zero.
void initialize_row(const RowInitializer& initializer, std::uint64_t id, std::size_t dimension, std::span<float> row);

// One update of a row, with g the sum of the batch's gradients for it:
//   SGD      w -= rate g
//   Adagrad  s += mean(g^2);  w -= rate g / (sqrt(s) + epsilon)                     (row-wise)
//   Adam     m += (1-beta1)(g-m);  v += (1-beta2)(g^2-v);  t += 1
//            w -= rate / (1-beta1^t) m / (sqrt(v / (1-beta2^t)) + epsilon)
// All instruction sets give bitwise the same. Nothing may overlap.
void update_row(const RowOptimizer& optimizer, std::span<const float> gradient, float* row,
                kernels::Instructions instructions = kernels::best_instructions());

}  // namespace motley::ps
