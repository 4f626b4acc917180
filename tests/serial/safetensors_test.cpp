// The parser accepts what the format allows and nothing else, whatever bytes it is given.
#include "motley/serial/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "motley/base/random.h"

namespace motley {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + std::string(data_bytes, 'x');
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<SafetensorsFile> parse(const std::string& file) {
  return parse_safetensors(bytes_of(file));
}

TEST(Safetensors, ReadsWhatItWrites) {
  const std::string numbers = "12345678abcdefgh12345678";
  const std::string file = encode_safetensors({{"small", "U8", {3}, bytes_of(numbers).first(3)},
                                               {"empty", "F32", {0, 7}, {}},
                                               {"scalar", "I64", {}, bytes_of(numbers).first(8)},
                                               {"matrix \"é\"", "F64", {3, 1}, bytes_of(numbers)}},
                                              {{"format", "pt"}});
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed) << parsed.error().message;
  ASSERT_EQ(parsed->entries.size(), 4u);
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  EXPECT_EQ((file.size() - parsed->data.size()) % 8, 0u) << "data is aligned";
  for (const SafetensorsEntry& entry : parsed->entries) {
    EXPECT_EQ(entry.begin % safetensors_type_bytes(entry.type), 0u) << entry.name;
    const auto found = parsed->bytes_of(entry);
    EXPECT_EQ(std::memcmp(found.data(), numbers.data(), found.size()), 0) << entry.name;
  }
  EXPECT_TRUE(parse(encode_safetensors({})));
}

TEST(Safetensors, RefusesDamageByName) {
  const auto message = [](const std::string& header, std::size_t data_bytes) {
    const auto parsed = parse(file_of(header, data_bytes));
    return parsed ? std::string("accepted") : parsed.error().message;
  };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(message(good, 8), "accepted");
  EXPECT_EQ(message(good + "   ", 8), "accepted");
  EXPECT_THAT(message(good, 7), HasSubstr("'a'"));
  EXPECT_THAT(message(good, 9), HasSubstr("no tensor"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("dtype"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), HasSubstr("shape"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), HasSubstr("size"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8), HasSubstr("size"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})", 9), HasSubstr("expected"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[4611686018427387904,2,4],"data_offsets":[0,0]}})", 0),
              HasSubstr("shape"))
      << "a product that overflows";
  EXPECT_THAT(
      message(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
          6),
      HasSubstr("'b'"))
      << "an overlap";
  EXPECT_THAT(
      message(
          R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          0),
      HasSubstr("twice"));
  EXPECT_THAT(message(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__"));
  EXPECT_THAT(message("[]", 0), HasSubstr("JSON"));
  EXPECT_THAT(message("{", 0), HasSubstr("JSON"));
  EXPECT_THAT(message(std::string(100'000, '['), 0), HasSubstr("JSON"));
  EXPECT_FALSE(parse("1234567"));
  EXPECT_FALSE(parse(std::string(8, '\xff') + "{}"));
}

// Whatever bytes change, the answer is an error or entries that lie within the data.
TEST(Safetensors, SurvivesDamagedBytes) {
  const std::string numbers(64, 'n');
  const std::string good = encode_safetensors(
      {{"w", "F32", {4, 2}, bytes_of(numbers).first(32)}, {"b", "BF16", {16}, bytes_of(numbers).first(32)}});
  Random random(17);
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = good;
    for (std::uint64_t i = 0; i <= random.below(3); ++i) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    damaged.resize(random.below(4) == 0 ? random.below(damaged.size() + 1) : damaged.size());
    const auto parsed = parse(damaged);
    refused += !parsed;
    if (parsed) {
      for (const SafetensorsEntry& entry : parsed->entries) {
        ASSERT_LE(entry.end, parsed->data.size());
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace motley
