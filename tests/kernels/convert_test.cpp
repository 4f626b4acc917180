// The conversions against exact arithmetic in double, float16 over all of its patterns, and all instruction sets
// against each other bit by bit.
#include "motley/kernels/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "motley/base/random.h"
#include "tests/kernels/supported.h"

namespace motley::kernels {
namespace {

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// The nearer of the two neighbouring bfloat16 values by exact arithmetic in double; a tie goes to the even one.
std::uint16_t nearest_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const std::uint16_t down = static_cast<std::uint16_t>(bits >> 16);
  const std::uint16_t up = static_cast<std::uint16_t>(down + 1);
  const double low = from_bits(static_cast<std::uint32_t>(down) << 16);
  double high = from_bits(static_cast<std::uint32_t>(up) << 16);
  if (std::isinf(high)) high = std::copysign(std::ldexp(1.0, 128), high);  // what the next value would be
  const double to_low = std::fabs(value - low);
  const double to_high = std::fabs(high - value);
  if (to_low == to_high) return down % 2 == 0 ? down : up;
  return to_low < to_high ? down : up;
}

TEST(Bfloat16, RoundsToNearestEvenInEveryInstructionSet) {
  Random random(3);
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::lowest(),
                               std::numeric_limits<float>::denorm_min(),
                               from_bits(0x3f808000),   // ties: to even below
                               from_bits(0x3f818000)};  // and above
  while (values.size() < 20000) {
    const float value = from_bits(static_cast<std::uint32_t>(random.next()));
    if (std::isfinite(value)) values.push_back(value);
  }
  for (Instructions instructions : supported()) {
    std::vector<std::uint16_t> halves(values.size());
    round_to_bfloat16(values, halves.data(), instructions);
    std::vector<float> back(values.size());
    widen_bfloat16(halves, back.data(), instructions);
    for (std::size_t e = 0; e < values.size(); ++e) {
      ASSERT_EQ(halves[e], nearest_bfloat16(values[e])) << values[e];
      std::uint32_t bits;
      std::memcpy(&bits, &back[e], sizeof(bits));
      ASSERT_EQ(bits, static_cast<std::uint32_t>(halves[e]) << 16);
    }
  }
}

TEST(Bfloat16, KeepsInfinityAndNan) {
  const std::vector<float> values = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                                     from_bits(0x7f800001), from_bits(0xffffffff), std::nanf("")};
  for (Instructions instructions : supported()) {
    std::vector<std::uint16_t> halves(values.size());
    std::vector<float> back(values.size());
    round_to_bfloat16(values, halves.data(), instructions);
    widen_bfloat16(halves, back.data(), instructions);
    EXPECT_EQ(back[0], values[0]);
    EXPECT_EQ(back[1], values[1]);
    for (std::size_t e = 2; e < values.size(); ++e) EXPECT_TRUE(std::isnan(back[e])) << e;
  }
}

constexpr std::uint16_t kHalfInfinity = 0x7c00;

// What the bits of a positive finite float16 say; the pattern of infinity gives what the next number would be.
double half_value(std::uint16_t half) {
  const int exponent = half >> 10;
  const int fraction = half & 0x3ff;
  return exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t h = 0; h < halves.size(); ++h) halves[h] = static_cast<std::uint16_t>(h);
  return halves;
}

// Converts in pieces of `piece` elements, so that ends which fill no vector meet every value too.
template <class From, class To>
std::vector<To> in_pieces(void (*convert)(std::span<const From>, To*, Instructions), const std::vector<From>& from,
                          std::size_t piece, Instructions instructions) {
  std::vector<To> to(from.size());
  for (std::size_t begin = 0; begin < from.size(); begin += piece) {
    const std::span<const From> part(from.data() + begin, std::min(piece, from.size() - begin));
    convert(part, to.data() + begin, instructions);
  }
  return to;
}

TEST(Float16, WidensEveryPattern) {
  const auto halves = all_halves();
  for (Instructions instructions : supported()) {
    for (std::size_t piece : {7, 65536}) {
      const auto wide = in_pieces<std::uint16_t, float>(widen_float16, halves, piece, instructions);
      for (std::size_t h = 0; h < halves.size(); ++h) {
        const std::uint16_t magnitude = h & 0x7fff;
        ASSERT_EQ(std::signbit(wide[h]), h >= 0x8000) << h;
        if (magnitude > kHalfInfinity) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[h]) & 0x7fffffff, 0x7fc00000u | (magnitude & 0x3ffu) << 13) << h;
        } else if (magnitude == kHalfInfinity) {
          ASSERT_TRUE(std::isinf(wide[h])) << h;
        } else {
          ASSERT_EQ(std::fabs(wide[h]), half_value(magnitude)) << h;
        }
      }
    }
  }
}

TEST(Float16, EveryPatternComesBack) {
  const auto halves = all_halves();
  for (Instructions instructions : supported()) {
    for (std::size_t piece : {7, 65536}) {
      const auto wide = in_pieces<std::uint16_t, float>(widen_float16, halves, piece, instructions);
      const auto back = in_pieces<float, std::uint16_t>(round_to_float16, wide, piece, instructions);
      for (std::size_t h = 0; h < halves.size(); ++h) {
        const bool nan = (h & 0x7fff) > kHalfInfinity;
        ASSERT_EQ(back[h], nan ? h | 0x200 : h);
      }
    }
  }
}

// Between two neighbours the middle goes to the even one, and what is next to the middle to the nearer one.
TEST(Float16, RoundsToNearestEvenBetweenAllNeighbours) {
  std::vector<float> values;
  std::vector<std::uint16_t> expected;
  for (std::uint16_t low = 0; low < kHalfInfinity; ++low) {
    const std::uint16_t high = low + 1;
    const auto middle = static_cast<float>((half_value(low) + half_value(high)) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const std::uint16_t sign : {0, 0x8000}) {
      const auto push = [&](float value, std::uint16_t half) {
        values.push_back(sign == 0 ? value : -value);
        expected.push_back(half | sign);
      };
      push(std::nextafter(middle, 0.0F), low);
      push(middle, low % 2 == 0 ? low : high);
      push(std::nextafter(middle, infinity), high);
    }
  }
  for (Instructions instructions : supported()) {
    for (std::size_t piece : {std::size_t{7}, values.size()}) {
      const auto halves = in_pieces<float, std::uint16_t>(round_to_float16, values, piece, instructions);
      for (std::size_t e = 0; e < values.size(); ++e) ASSERT_EQ(halves[e], expected[e]) << values[e];
    }
  }
}

TEST(Float16, AllInstructionSetsAgreeOnAnyBits) {
  Random random(8);
  std::vector<float> values = {0.0F, -0.0F, std::numeric_limits<float>::infinity(), std::nanf("")};
  while (values.size() < 50000) values.push_back(from_bits(static_cast<std::uint32_t>(random.next())));
  const auto reference = in_pieces<float, std::uint16_t>(round_to_float16, values, 50000, Instructions::kPortable);
  for (Instructions instructions : supported()) {
    for (std::size_t piece : {13, 50000}) {
      EXPECT_EQ((in_pieces<float, std::uint16_t>(round_to_float16, values, piece, instructions)), reference);
    }
  }
}

}  // namespace
}  // namespace motley::kernels
