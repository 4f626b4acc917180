#include "motley/ps/embedding/row_optimizer.h"

#include <cmath>

#include "motley/base/random.h"

namespace motley::ps {
namespace {

using kernels::Instructions;

#define MOTLEY_BODY "motley/ps/embedding/row_optimizer_body.inc"
#include "motley/kernels/every_target.inc"

}  // namespace

const char* to_string(RowInitializer::Kind kind) {
  return kind == RowInitializer::Kind::kUniform ? "uniform" : "normal";
}

const char* to_string(RowOptimizer::Kind kind) {
  return kind == RowOptimizer::Kind::kSgd ? "sgd" : kind == RowOptimizer::Kind::kAdagrad ? "adagrad" : "adam";
}

std::size_t state_floats(RowOptimizer::Kind kind, std::size_t dimension) {
  return kind == RowOptimizer::Kind::kSgd ? 0 : kind == RowOptimizer::Kind::kAdagrad ? 1 : 2 * dimension + 1;
}

void initialize_row(const RowInitializer& initializer, std::uint64_t id, std::size_t dimension, std::span<float> row) {
  Random random(mix({initializer.seed, id}));
  for (std::size_t e = 0; e < row.size(); ++e) {
    double value = 0;
    if (e < dimension) {
      value = initializer.kind == RowInitializer::Kind::kUniform ? 2 * random.uniform() - 1 : random.normal();
    }
    row[e] = initializer.scale * static_cast<float>(value);
  }
}

void update_row(const RowOptimizer& optimizer, std::span<const float> gradient, float* row, Instructions instructions) {
  MOTLEY_DISPATCH(instructions, update(optimizer, gradient.data(), row, gradient.size()));
}

}  // namespace motley::ps
