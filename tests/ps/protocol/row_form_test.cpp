// Rows in frames: what comes out is as near to what went in as its form can be, row by row, and a frame has the length
// that both sides count on.
#include "motley/ps/protocol/sparse_protocol.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "motley/base/random.h"

namespace motley::ps {
namespace {

using collective::WireType;

constexpr WireType kTypes[] = {WireType::kNative, WireType::kBfloat16, WireType::kFloat16, WireType::kInt8};
constexpr std::byte kGuard{0x5a};

// Rows whose magnitudes differ by far, as those of rare and frequent ids do; within float16's normal numbers.
std::vector<float> random_rows(Random& random, std::size_t rows, std::size_t dimension) {
  std::vector<float> values;
  for (std::size_t row = 0; row < rows; ++row) {
    const double magnitude = std::pow(10, -3 + 4 * random.uniform());
    for (std::size_t e = 0; e < dimension; ++e) values.push_back(static_cast<float>(magnitude * random.normal()));
  }
  return values;
}

std::vector<float> there_and_back(const RowForm& form, const std::vector<float>& rows) {
  const std::size_t bytes = rows.size() / form.dimension * form.row_bytes();
  std::vector<std::byte> frame(bytes + 8, kGuard);
  form.write(rows, frame.data());
  for (std::size_t at = bytes; at < frame.size(); ++at) EXPECT_EQ(frame[at], kGuard) << "written beyond the frame";
  std::vector<float> restored(rows.size(), 77);
  form.read(frame.data(), restored);
  return restored;
}

// The nearest number of so many significant bits (the leading one included), of normal numbers; found in double.
double nearest(float value, int bits) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, exponent - bits);
  return std::nearbyint(value / unit) * unit;  // ties to even
}

TEST(RowForm, GivesTheNearestRowsOfItsKind) {
  Random random(91);
  for (const WireType type : kTypes) {
    for (const std::size_t dimension : {1, 3, 10, 64, 300}) {
      const RowForm form{type, dimension};
      const std::vector<float> rows = random_rows(random, 1 + random.below(40), dimension);
      const std::vector<float> restored = there_and_back(form, rows);
      for (std::size_t e = 0; e < rows.size(); ++e) {
        if (type == WireType::kNative) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(restored[e]), std::bit_cast<std::uint32_t>(rows[e]));
        } else if (type == WireType::kBfloat16) {
          ASSERT_EQ(restored[e], nearest(rows[e], 8));
        } else if (type == WireType::kFloat16 && std::abs(rows[e]) >= 0x1p-14F) {
          ASSERT_EQ(restored[e], nearest(rows[e], 11));
        } else if (type == WireType::kFloat16) {
          ASSERT_LE(std::abs(restored[e] - rows[e]), 0x1p-25);
        } else {
          float largest = 0;
          const std::size_t row = e / dimension;
          for (std::size_t i = 0; i < dimension; ++i) largest = std::max(largest, std::abs(rows[row * dimension + i]));
          ASSERT_LE(std::abs(restored[e] - rows[e]), largest / 127 * 0.5001F);
        }
      }
    }
  }
}

TEST(RowForm, TakesAsManyBytesAsItsTypeHas) {
  EXPECT_EQ((RowForm{WireType::kNative, 10}.row_bytes()), 40U);
  EXPECT_EQ((RowForm{WireType::kBfloat16, 10}.row_bytes()), 20U);
  EXPECT_EQ((RowForm{WireType::kFloat16, 10}.row_bytes()), 20U);
  EXPECT_EQ((RowForm{WireType::kInt8, 10}.row_bytes()), 14U);
  EXPECT_FALSE(RowForm::accepts(WireType::kTopK));
  EXPECT_FALSE(RowForm::accepts(WireType::kAuto));
}

// A row that diverged, or is far larger than others, changes none of them.
TEST(RowForm, LeavesEachRowToItself) {
  Random random(92);
  for (const WireType type : kTypes) {
    const RowForm form{type, 7};
    std::vector<float> rows = random_rows(random, 3, 7);
    const std::vector<float> before = there_and_back(form, rows);
    rows[7 + 2] = NAN;
    const std::vector<float> after = there_and_back(form, rows);
    EXPECT_TRUE(std::isnan(after[7 + 2])) << static_cast<int>(type);
    for (std::size_t e = 0; e < 7; ++e) {
      EXPECT_EQ(after[e], before[e]);
      EXPECT_EQ(after[14 + e], before[14 + e]);
    }
  }
}

}  // namespace
}  // namespace motley::ps
