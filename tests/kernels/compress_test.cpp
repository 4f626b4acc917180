// Blocks of int8 against their bound, the selection of largest elements against sorting.
#include "motley/kernels/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "motley/base/random.h"
#include "tests/kernels/supported.h"

namespace motley::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Quantized {
  std::vector<std::int8_t> values;
  std::vector<float> scales;
  std::vector<float> restored;
};

Quantized quantized(std::span<const float> from, std::size_t block, Instructions instructions) {
  Quantized result{std::vector<std::int8_t>(from.size()), std::vector<float>(int8_blocks(from.size(), block)),
                   std::vector<float>(from.size())};
  quantize_int8_blocks(from, result.values.data(), result.scales.data(), block, instructions);
  dequantize_int8_blocks(result.values, result.scales.data(), result.restored.data(), block, instructions);
  return result;
}

TEST(Int8Blocks, AreOffByHalfAScaleAtMost) {
  Random random(31);
  for (int round = 0; round < 100; ++round) {
    const std::size_t count = random.below(2000);
    const std::size_t block = round % 2 == 0 ? kInt8Block : 1 + random.below(300);
    std::vector<float> values(count + 1);
    const double magnitude = std::pow(10, -30 + 60 * random.uniform());
    for (float& value : values) value = static_cast<float>(magnitude * random.normal());
    const std::span<const float> from(values.data() + 1, count);
    const Quantized reference = quantized(from, block, Instructions::kPortable);
    for (std::size_t begin = 0; begin < count; begin += block) {
      const std::size_t end = std::min(begin + block, count);
      float largest = 0;
      for (std::size_t e = begin; e < end; ++e) largest = std::max(largest, std::fabs(from[e]));
      ASSERT_EQ(reference.scales[begin / block], largest / 127);
      for (std::size_t e = begin; e < end; ++e) {
        ASSERT_LE(std::fabs(double{reference.restored[e]} - from[e]), largest * (0.5 / 127 + 4e-7));
        ASSERT_GE(reference.values[e], -127);
      }
    }
    for (Instructions instructions : supported()) {
      const Quantized other = quantized(from, block, instructions);
      ASSERT_EQ(other.values, reference.values);
      ASSERT_EQ(other.scales, reference.scales);
      ASSERT_EQ(other.restored, reference.restored);
    }
  }
}

TEST(Int8Blocks, RoundTiesToEven) {
  const std::vector<float> values = {127, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -126.5F, 126.49F, -127};
  for (Instructions instructions : supported()) {
    EXPECT_THAT(quantized(values, 256, instructions).values, ElementsAre(127, 0, 2, 2, 0, -2, -126, 126, -127));
  }
}

TEST(Int8Blocks, ShowNanAndInfinityInTheirBlockOnly) {
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    std::vector<float> values(90, 1.0F);
    values[45] = bad;
    for (Instructions instructions : supported()) {
      const Quantized result = quantized(values, 30, instructions);
      for (std::size_t e = 0; e < values.size(); ++e) {
        if (e / 30 == 1) {
          ASSERT_TRUE(std::isnan(result.restored[e])) << e;
        } else {
          ASSERT_FLOAT_EQ(result.restored[e], 1.0F) << e;
        }
      }
    }
  }
}

TEST(Int8Blocks, OfZerosOrOfNumbersTooSmallForAScaleAreZero) {
  for (const float value : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), 1e-37F}) {
    const std::vector<float> values(300, value);
    for (Instructions instructions : supported()) {
      EXPECT_EQ(quantized(values, 256, instructions).restored, std::vector<float>(300, 0.0F)) << value;
    }
  }
}

std::vector<std::uint32_t> by_sorting(const std::vector<float>& values, std::size_t selected) {
  const auto magnitude = [&](std::uint32_t e) { return std::isnan(values[e]) ? 2e39 : std::fabs(double{values[e]}); };
  std::vector<std::uint32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, std::less<>(), [&](auto e) { return std::pair(-magnitude(e), e); });
  order.resize(selected);
  std::ranges::sort(order);
  return order;
}

TEST(SelectLargest, EqualsSorting) {
  Random random(32);
  for (int round = 0; round < 400; ++round) {
    std::vector<float> values(random.below(round % 20 == 0 ? 20000 : 300));
    const bool ties = random.below(2) == 0;
    for (float& value : values) {
      value = ties ? static_cast<float>(random.below(7)) - 3 : static_cast<float>(random.normal());
      if (random.below(50) == 0) value = random.below(2) == 0 ? kInfinity : std::numeric_limits<float>::denorm_min();
    }
    const std::size_t selected = random.below(values.size() + 1);
    std::vector<std::uint32_t> indices(selected);
    select_largest(values, selected, indices.data());
    ASSERT_EQ(indices, by_sorting(values, selected)) << selected << " of " << values.size();
  }
}

TEST(SelectLargest, TakesNanFirst) {
  const std::vector<float> values = {1, kInfinity, -2, std::nanf(""), -kInfinity};
  std::vector<std::uint32_t> indices(2);
  select_largest(values, indices.size(), indices.data());
  EXPECT_THAT(indices, ElementsAre(1, 3));
}

TEST(ScatterAdd, AddsScaledValuesWhereIndicesSay) {
  std::vector<float> to = {1, 2, 3, 4};
  const std::vector<std::uint32_t> indices = {3, 0, 3};
  const std::vector<float> values = {10, 20, 30};
  EXPECT_TRUE(scatter_add(indices, values.data(), 0.5F, to));
  EXPECT_THAT(to, ElementsAre(11, 2, 3, 24));
}

TEST(ScatterAdd, RefusesIndicesOutsideAndChangesNothing) {
  std::vector<float> to = {1, 2, 3, 4};
  const std::vector<std::uint32_t> indices = {0, 4};
  const std::vector<float> values = {10, 20};
  EXPECT_FALSE(scatter_add(indices, values.data(), 1, to));
  EXPECT_THAT(to, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace motley::kernels
