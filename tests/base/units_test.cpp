// Units are read as users write them, and what is not a unit is refused with the text in the message.
#include "motley/base/units.h"

#include <gtest/gtest.h>

#include <vector>

namespace motley {
namespace {

TEST(Units, ReadsSizesRatesAndTimes) {
  EXPECT_DOUBLE_EQ(*parse_bytes("64 KB"), 64e3);
  EXPECT_DOUBLE_EQ(*parse_bytes("64KiB"), 65536);
  EXPECT_DOUBLE_EQ(*parse_bytes("1.5GB"), 1.5e9);
  EXPECT_DOUBLE_EQ(*parse_bytes("0"), 0);
  EXPECT_DOUBLE_EQ(*parse_bytes_per_second("1 Gb/s"), 1.25e8);
  EXPECT_DOUBLE_EQ(*parse_bytes_per_second("10GB/s"), 1e10);
  EXPECT_DOUBLE_EQ(*parse_seconds("250 ms"), 0.25);
  EXPECT_DOUBLE_EQ(*parse_bytes_per_second("10Gbps"), 1.25e9);
  EXPECT_DOUBLE_EQ(*parse_seconds("2 min"), 120);
  EXPECT_DOUBLE_EQ(*parse_seconds("90s"), 90);
  EXPECT_DOUBLE_EQ(*parse_seconds("1.5h"), 5400);
  EXPECT_DOUBLE_EQ(*parse_seconds("0"), 0);
}

TEST(Units, RefusesWhatIsNotAUnit) {
  for (const char* text : {"", "KB", "-1 KB", "1 kilobyte", "nan", "1e999", "12", "1 2 KB"}) {
    const auto result = parse_bytes(text);
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message.find(std::string("'") + text + "'"), std::string::npos);
  }
  EXPECT_FALSE(parse_bytes_per_second("1000"));
  EXPECT_FALSE(parse_seconds("1 fortnight"));
  EXPECT_EQ(parse_seconds("90").error().message, "'90' is not a duration such as '250ms', '90s' or '2h'");
}

TEST(Units, ExactTextIsReadBackAsTheSameValue) {
  EXPECT_EQ(exact_seconds(90), "90s");
  EXPECT_EQ(exact_seconds(7200), "2h");
  EXPECT_EQ(exact_seconds(0.1), "100ms");
  EXPECT_EQ(exact_seconds(1e-5), "10us");
  EXPECT_EQ(exact_seconds(0), "0");
  EXPECT_EQ(exact_bytes(1.5e9), "1500MB");
  EXPECT_EQ(exact_bytes(4096), "4KiB");
  EXPECT_EQ(exact_bytes_per_second(1.25e9), "10Gbps");
  for (const double value : {0.123456789, 1e-12, 3e-9, 86400.0 * 365, 1.0 / 3, 12345678.9, 1e15 + 1}) {
    EXPECT_EQ(*parse_seconds(exact_seconds(value)), value);
    EXPECT_EQ(*parse_bytes(exact_bytes(value)), value);
    EXPECT_EQ(*parse_bytes_per_second(exact_bytes_per_second(value)), value);
  }
}

TEST(Units, FormatsShortly) {
  EXPECT_EQ(format_bytes(46.8e6), "46.8 MB");
  EXPECT_EQ(format_bytes(999.7e6), "1 GB");
  EXPECT_EQ(format_bytes(999.4e3), "999 KB");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(65), "1 min 5 s");
  EXPECT_EQ(format_ranks(std::vector{3}), "rank 3");
  EXPECT_EQ(format_ranks(std::vector{1, 2}), "ranks 1, 2");
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_number(20000), "20,000");
  EXPECT_EQ(format_number(-1234567.4), "-1,234,567");
  EXPECT_EQ(format_number(999.97), "1,000");
  EXPECT_EQ(format_number(999), "999");
  EXPECT_EQ(format_number(0.0012345), "0.001234");
}

}  // namespace
}  // namespace motley
