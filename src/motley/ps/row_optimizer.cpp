// The update is written once and compiled for each instruction set: the compiler turns its loops into vectors, except
// for the mean square, whose order of additions is fixed by hand to sixteen partial sums.
#include "motley/ps/row_optimizer.h"

#include <cmath>

#include "motley/base/random.h"

namespace motley::ps {
namespace {

typedef float Vector __attribute__((vector_size(64), aligned(alignof(float)), may_alias));
constexpr std::size_t kLanes = sizeof(Vector) / sizeof(float);

[[gnu::always_inline]] inline float mean_square(const float* __restrict gradient, std::size_t dimension) {
  Vector sums = {};
  std::size_t e = 0;
  for (; e + kLanes <= dimension; e += kLanes) {
    const Vector values = *reinterpret_cast<const Vector*>(gradient + e);
    sums += values * values;
  }
  float rest = 0;
  for (; e < dimension; ++e) {
    rest += gradient[e] * gradient[e];
  }
  float lanes[kLanes];
  *reinterpret_cast<Vector*>(lanes) = sums;
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return (lanes[0] + rest) / static_cast<float>(dimension);
}

[[gnu::always_inline]] inline void update(const RowOptimizer& optimizer, const float* __restrict gradient,
                                          float* __restrict row, std::size_t dimension) {
  const float rate = optimizer.learning_rate;
  if (optimizer.kind == RowOptimizer::Kind::kSgd) {
    for (std::size_t e = 0; e < dimension; ++e) {
      row[e] -= rate * gradient[e];
    }
  } else if (optimizer.kind == RowOptimizer::Kind::kAdagrad) {
    float& sum = row[dimension];
    sum += mean_square(gradient, dimension);
    const float factor = rate / (std::sqrt(sum) + optimizer.epsilon);
    for (std::size_t e = 0; e < dimension; ++e) {
      row[e] -= factor * gradient[e];
    }
  } else {
    float* __restrict first = row + dimension;
    float* __restrict second = first + dimension;
    float& updates = second[dimension];
    updates += 1;
    const auto factor = static_cast<float>(rate / (1 - std::pow(static_cast<double>(optimizer.beta1), updates)));
    const auto root = static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(optimizer.beta2), updates)));
    const float fresh1 = 1 - optimizer.beta1;
    const float fresh2 = 1 - optimizer.beta2;
    for (std::size_t e = 0; e < dimension; ++e) {
      const float g = gradient[e];
      first[e] += fresh1 * (g - first[e]);
      second[e] += fresh2 * (g * g - second[e]);
      row[e] -= factor * first[e] / (std::sqrt(second[e]) / root + optimizer.epsilon);
    }
  }
}

void update_portable(const RowOptimizer& optimizer, const float* gradient, float* row, std::size_t dimension) {
  update(optimizer, gradient, row, dimension);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void update_avx2(const RowOptimizer& optimizer, const float* gradient, float* row,
                                                 std::size_t dimension) {
  update(optimizer, gradient, row, dimension);
}

#if defined(__clang__)  // knows no preference of a width in the attribute
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#else
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
void update_avx512(const RowOptimizer& optimizer, const float* gradient, float* row, std::size_t dimension) {
  update(optimizer, gradient, row, dimension);
}
#endif

}  // namespace

const char* to_string(RowInitializer::Kind kind) {
  return kind == RowInitializer::Kind::kUniform ? "uniform" : "normal";
}

const char* to_string(RowOptimizer::Kind kind) {
  switch (kind) {
    case RowOptimizer::Kind::kSgd:
      return "sgd";
    case RowOptimizer::Kind::kAdagrad:
      return "adagrad";
    case RowOptimizer::Kind::kAdam:
      return "adam";
  }
  return "unknown";
}

std::size_t state_floats(RowOptimizer::Kind kind, std::size_t dimension) {
  switch (kind) {
    case RowOptimizer::Kind::kSgd:
      return 0;
    case RowOptimizer::Kind::kAdagrad:
      return 1;
    case RowOptimizer::Kind::kAdam:
      return 2 * dimension + 1;
  }
  return 0;
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

void update_row(const RowOptimizer& optimizer, std::span<const float> gradient, float* row,
                kernels::Instructions instructions) {
#if defined(__x86_64__)
  if (instructions == kernels::Instructions::kAvx512) {
    return update_avx512(optimizer, gradient.data(), row, gradient.size());
  }
  if (instructions == kernels::Instructions::kAvx2) {
    return update_avx2(optimizer, gradient.data(), row, gradient.size());
  }
#endif
  (void)instructions;
  update_portable(optimizer, gradient.data(), row, gradient.size());
}

void add_to(std::span<float> sum, const float* addend) {
  for (std::size_t e = 0; e < sum.size(); ++e) {
    sum[e] += addend[e];
  }
}

}  // namespace motley::ps
