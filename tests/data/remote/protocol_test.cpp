// Messages of the data server: what was sent is what is read, in the bytes that docs/reference/wire-format.md says, and
// nothing else is accepted.
#include "motley/data/remote/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> byte_size(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

Description images() {
  Description description;
  description.size = 10;
  description.feature_shape = {1, 1, 2};
  description.class_count = 300;
  for (int i = 0; i < 300; ++i) description.class_names.push_back(fmt::format("label {}", i));
  description.bytes = data::ByteFeatures{.scale = 255, .normalisation = {{0.5F, 0.25F}, {2, 4}}};
  description.skipped = {3, "line 7 is bad"};
  description.contents = 0x1234'5678'9abc'def0;
  return description;
}

Description table() {
  Description description;
  description.size = 5;
  description.feature_shape = {2};
  description.target_kind = data::TargetKind::kReal;
  description.categories = 1;
  description.improbable_target = 4;
  return description;
}

TEST(DataProtocol, MessagesComeBackAsTheyWent) {
  for (const Description& description : {images(), table()}) {
    const auto again = decode_description(encode(description));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->size, description.size);
    EXPECT_EQ(again->feature_shape, description.feature_shape);
    EXPECT_EQ(again->target_kind, description.target_kind);
    EXPECT_EQ(again->class_count, description.class_count);
    EXPECT_EQ(again->class_names, description.class_names);
    EXPECT_EQ(again->categories, description.categories);
    EXPECT_EQ(again->bytes, description.bytes);
    EXPECT_EQ(again->skipped.lines, description.skipped.lines);
    EXPECT_EQ(again->skipped.first, description.skipped.first);
    EXPECT_EQ(again->contents, description.contents);
    EXPECT_EQ(again->improbable_target, description.improbable_target);
  }
  const auto open = decode_open(encode(Open{Set::kTest, "data.name: csv\n"}));
  ASSERT_TRUE(open);
  EXPECT_EQ(open->set, Set::kTest);
  EXPECT_EQ(open->keys, "data.name: csv\n");
  const auto failed = decode_failed(encode(Error{ErrorCode::kInvalidInput, "no", -1}));
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->code, ErrorCode::kInvalidInput);
  EXPECT_EQ(failed->message, "no");
}

TEST(DataProtocol, ARequestIsItsPartsAndSamples) {
  const std::vector<std::uint32_t> samples = {9, 1};
  const auto bytes = encode_read({.inputs = true, .targets = false}, samples);
  EXPECT_EQ(bytes, byte_size({1, 9, 0, 0, 0, 1, 0, 0, 0}));
  const auto read = decode_read(bytes, images());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->parts, (data::Parts{true, false}));
  EXPECT_EQ(read->samples, samples);
}

TEST(DataProtocol, SamplesAreAsNarrowAsTheyAreExact) {
  EXPECT_EQ(sample_bytes(images(), {}), 2U + 2U);  // bytes, and a class of 300 in two
  EXPECT_EQ(sample_bytes(images(), {true, false}), 2U);
  EXPECT_EQ(sample_bytes(table(), {}), 8U + 2U * 4U + 4U);
  Description few = images();
  few.class_count = 256;
  EXPECT_EQ(sample_bytes(few, {false, true}), 1U);
  few.class_count = 1 << 17;
  EXPECT_EQ(sample_bytes(few, {false, true}), 4U);
  EXPECT_EQ(samples_in_answer(images(), {}), 65536U);
  few.feature_shape = {1 << 21};
  EXPECT_EQ(samples_in_answer(few, {true, false}), 2U);
  few.feature_shape = {1 << 24};
  EXPECT_EQ(samples_in_answer(few, {}), 1U);
}

TEST(DataProtocol, UnpacksBytesOfTheDescription) {
  std::vector<float> features(4);
  std::vector<std::int64_t> classes(2);
  const auto bytes = byte_size({0, 255, 51, 102, 43, 1, 2, 0});
  ASSERT_TRUE(unpack(bytes, images(), {}, 2, {features, classes, {}}));
  EXPECT_THAT(classes, ElementsAre(299, 2));
  EXPECT_FLOAT_EQ(features[0], (0 - 0.5F) / 2);
  EXPECT_FLOAT_EQ(features[1], (1 - 0.25F) / 4);
  EXPECT_FLOAT_EQ(features[2], (0.2F - 0.5F) / 2);
  EXPECT_FLOAT_EQ(features[3], (0.4F - 0.25F) / 4);
}

TEST(DataProtocol, RefusesAClassThatIsNotThere) {
  std::vector<std::int64_t> classes(1);
  const auto refused = unpack(byte_size({44, 1}), images(), {false, true}, 1, {{}, classes, {}});
  ASSERT_FALSE(refused);  // 300 of 300
  EXPECT_THAT(refused.error().message, HasSubstr("beyond the 300"));
}

TEST(DataProtocol, RefusesWhatIsNoMessage) {
  for (const Description& description : {images(), table()}) {
    const std::vector<std::byte> whole = encode(description);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(decode_description(std::span(whole).first(size))) << size;
    }
    std::vector<std::byte> more = whole;
    more.push_back({});
    EXPECT_FALSE(decode_description(more));
  }
  const auto impossible = [](auto change) {
    Description description = images();
    change(description);
    return !decode_description(encode(description)).has_value();
  };
  EXPECT_FALSE(impossible([](Description&) {}));
  EXPECT_TRUE(impossible([](Description& d) { d.size = 0; }));
  EXPECT_TRUE(impossible([](Description& d) { d.feature_shape = {}; }));
  EXPECT_TRUE(impossible([](Description& d) { d.feature_shape = {1 << 30, 1 << 30, 1 << 30, 2}; }));
  EXPECT_TRUE(impossible([](Description& d) { d.feature_shape = {3}; }));  // with two pairs
  EXPECT_TRUE(impossible([](Description& d) { d.class_count = 0; }));
  EXPECT_TRUE(impossible([](Description& d) { d.class_names.pop_back(); }));
  EXPECT_TRUE(impossible([](Description& d) { d.target_width = 0; }));
  EXPECT_TRUE(impossible([](Description& d) { d.categories = ~0U; }));
  EXPECT_TRUE(impossible([](Description& d) { d.bytes->scale = 0; }));

  EXPECT_FALSE(decode_read(byte_size({}), images()));
  EXPECT_FALSE(decode_read(byte_size({1}), images()));
  EXPECT_FALSE(decode_read(byte_size({0, 1, 0, 0, 0}), images()));
  EXPECT_FALSE(decode_read(byte_size({4, 1, 0, 0, 0}), images()));
  EXPECT_FALSE(decode_read(byte_size({3, 1, 0, 0}), images()));
  EXPECT_THAT(decode_read(byte_size({3, 10, 0, 0, 0}), images()).error().message, HasSubstr("sample 10"));
  Description large = images();
  large.feature_shape = {1 << 22};
  EXPECT_TRUE(decode_read(encode_read({}, std::vector<std::uint32_t>(1)), large));
  EXPECT_FALSE(decode_read(encode_read({}, std::vector<std::uint32_t>(2)), large)) << "more than an answer may have";
  EXPECT_FALSE(decode_open(byte_size({2, 0, 0})));
  EXPECT_FALSE(decode_failed(byte_size({0, 0, 255, 0})));
}

}  // namespace
}  // namespace motley::data
