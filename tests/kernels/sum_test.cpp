// The sums against a plain loop in the next wider type, and all instruction sets against each other bit by bit.
#include "motley/kernels/sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "motley/base/random.h"
#include "tests/kernels/supported.h"

namespace motley::kernels {
namespace {

template <class T>
struct SumProblem {
  std::vector<std::vector<T>> values;  // one per input
  std::vector<T> coefficients;
  T scale;
};

template <class T>
SumProblem<T> random_problem(Random& random, std::size_t inputs, std::size_t count) {
  SumProblem<T> problem;
  for (std::size_t i = 0; i < inputs; ++i) {
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(random.normal());
    problem.values.push_back(std::move(values));
    problem.coefficients.push_back(random.below(3) == 0 ? T{1} : static_cast<T>(random.uniform() * 100));
  }
  problem.scale = static_cast<T>(0.001 + random.uniform());
  return problem;
}

// In place: the outputs are the inputs' own buffers and one more.
template <class T>
std::vector<std::vector<T>> run(const SumProblem<T>& problem, std::size_t count, std::size_t shift,
                                Instructions instructions) {
  std::vector<std::vector<T>> buffers;
  for (const auto& values : problem.values) {
    buffers.emplace_back(count + shift + 1, T{-7});
    std::copy(values.begin(), values.end(), buffers.back().begin() + static_cast<std::ptrdiff_t>(shift));
  }
  buffers.emplace_back(count + shift + 1, T{-7});
  std::vector<const T*> inputs;
  std::vector<T*> outputs;
  for (auto& buffer : buffers) {
    inputs.push_back(buffer.data() + shift);
    outputs.push_back(buffer.data() + shift);
  }
  inputs.pop_back();
  weighted_sum(inputs, problem.coefficients, problem.scale, outputs, count, instructions);
  return buffers;
}

template <class T>
class WeightedSum : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(WeightedSum, Types);

TYPED_TEST(WeightedSum, EqualsAPlainSumInEveryInstructionSet) {
  using T = TypeParam;
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    const std::size_t inputs = random.below(round % 10 == 0 ? 30 : 10);
    const std::size_t count = random.below(3) == 0 ? random.below(5000) : random.below(200);
    const std::size_t shift = random.below(4);
    const auto problem = random_problem<T>(random, inputs, count);
    const auto reference = run(problem, count, shift, Instructions::kPortable);
    for (std::size_t e = 0; e < count; ++e) {
      long double sum = 0;
      long double magnitude = 0;
      for (std::size_t i = 0; i < inputs; ++i) {
        const long double term = static_cast<long double>(problem.coefficients[i]) * problem.values[i][e];
        sum += term;
        magnitude += std::fabs(term);
      }
      const long double bound = (inputs + 2) * std::numeric_limits<T>::epsilon() * magnitude * problem.scale;
      for (const auto& buffer : reference) {
        ASSERT_LE(std::fabs(buffer[shift + e] - sum * problem.scale), bound) << inputs << " inputs, element " << e;
      }
    }
    for (const auto& buffer : reference) {
      for (std::size_t e = 0; e < shift; ++e) ASSERT_EQ(buffer[e], T{-7}) << "written before the output";
      ASSERT_EQ(buffer[shift + count], T{-7}) << "written behind the output";
    }
    for (Instructions instructions : supported()) {
      const auto other = run(problem, count, shift, instructions);
      for (std::size_t k = 0; k < other.size(); ++k) {
        ASSERT_EQ(std::memcmp(other[k].data(), reference[k].data(), other[k].size() * sizeof(T)), 0)
            << inputs << " inputs, " << count << " elements, set " << static_cast<int>(instructions);
      }
    }
  }
}

TYPED_TEST(WeightedSum, RoundsProductsThenAddsInOrderThenScales) {
  using T = TypeParam;
  Random random(5);
  for (std::size_t inputs : {1, 2, 3, 7, 8, 9, 15, 16, 23}) {
    const std::size_t count = 133;
    const auto problem = random_problem<T>(random, inputs, count);
    for (Instructions instructions : supported()) {
      const auto result = run(problem, count, 0, instructions);
      for (std::size_t e = 0; e < count; ++e) {
        volatile T sum = problem.coefficients[0] * problem.values[0][e];
        for (std::size_t i = 1; i < inputs; ++i) {
          volatile T product = problem.coefficients[i] * problem.values[i][e];
          sum = sum + product;
        }
        sum = sum * problem.scale;
        ASSERT_EQ(result.back()[e], sum) << inputs << " inputs, element " << e;
      }
    }
  }
}

TYPED_TEST(WeightedSum, NoInputGivesZeros) {
  std::vector<TypeParam> out(100, TypeParam{3});
  std::vector<TypeParam*> outputs = {out.data()};
  weighted_sum(std::span<const TypeParam* const>{}, std::span<const TypeParam>{}, TypeParam{1}, outputs, out.size());
  EXPECT_EQ(out, std::vector<TypeParam>(100, TypeParam{0}));
}

}  // namespace
}  // namespace motley::kernels
