// Arrays of tokens: windows and rows against the tokens that were written, and files that are something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/data/local/npy_bytes.h"
#include "tests/data/local/source_test.h"

namespace motley::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

class Tokens : public SourceTest {
 protected:
  Tokens() {
    source_.format = DatasetSource::Format::kTokens;
    source_.sequence = 3;
  }
  void write(const std::string& name, const std::string& bytes) {
    source_.features = folder_.path / name;
    EXPECT_TRUE(write_file(source_.features, bytes));
  }
};

const std::vector<std::uint16_t> kStream = {5, 6, 50256, 8, 9, 10, 11, 12, 13};

TEST_F(Tokens, AStreamIsCutIntoWindowsAndTheTokensThatFollow) {
  const auto check = [&] {
    const auto dataset = open();
    EXPECT_EQ(dataset->size(), 2U);  // of a third window the token after it is not there
    EXPECT_THAT(dataset->feature_shape(), ElementsAre(3));
    EXPECT_EQ(dataset->target_width(), 3U);
    EXPECT_EQ(dataset->class_count(), 50257U);
    const Batch batch = read(*dataset, {1, 0});
    EXPECT_THAT(batch.features, ElementsAre(8, 9, 10, 5, 6, 50256));
    EXPECT_THAT(batch.classes, ElementsAre(9, 10, 11, 6, 50256, 8));
  };
  write("train.bin", as_bytes(kStream));
  check();
  source_.token_type = TokenType::kUint16;
  check();
  source_.token_type = TokenType::kUint32;
  const std::vector<std::uint32_t> wide(kStream.begin(), kStream.end());
  write("train.bin", as_bytes(wide));
  check();
  source_.token_type = TokenType::kAuto;
  write("train.npy", npy<std::uint16_t>("<u2", "(9,)", kStream));
  check();
  write("train.npy", npy<std::int64_t>("<i8", "(9,)", {kStream.begin(), kStream.end()}));
  check();
  source_.token_type = TokenType::kUint16;
  EXPECT_THAT(refusal(), HasSubstr("accepted: data.token_dtype: auto"));
}

// Its first token is what a gzip file begins with.
TEST_F(Tokens, AStreamIsNotTakenForGzip) {
  std::vector<std::uint16_t> stream = kStream;
  stream.front() = 0x8b1f;
  write("train.bin", as_bytes(stream));
  EXPECT_THAT(read(*open(), {0}).features, ElementsAre(0x8b1f, 6, 50256));
}

TEST_F(Tokens, RowsAreSamples) {
  write("rows.npy", npy<std::int32_t>("<i4", "(3, 4)", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  for (const std::uint32_t sequence : {0U, 3U}) {
    source_.sequence = sequence;
    const auto dataset = open();
    EXPECT_EQ(dataset->size(), 3U);
    EXPECT_EQ(dataset->class_count(), 12U);
    const Batch batch = read(*dataset, {2});
    EXPECT_THAT(batch.features, ElementsAre(8, 9, 10));
    EXPECT_THAT(batch.classes, ElementsAre(9, 10, 11));
  }
  source_.sequence = 4;
  EXPECT_THAT(refusal(), HasSubstr("data.sequence_length: 3 or 0"));
}

TEST_F(Tokens, PartsHaveNoTokenInCommon) {
  write("train.bin", as_bytes(kStream));
  source_.sequence = 2;
  source_.text_end = 0.7;  // six tokens
  auto dataset = open();
  EXPECT_EQ(dataset->size(), 2U);
  EXPECT_THAT(read(*dataset, {1}).classes, ElementsAre(8, 9));
  const auto training = std::move(dataset);
  source_.preprocessing = &training->preprocessing();
  source_.text_begin = 0.7;
  source_.text_end = 1;
  dataset = open();
  EXPECT_EQ(dataset->size(), 1U);
  EXPECT_EQ(dataset->class_count(), 50257U);  // the training data's
  EXPECT_THAT(read(*dataset, {0}).features, ElementsAre(11, 12));
}

TEST_F(Tokens, AreBelowTheVocabulary) {
  write("train.bin", as_bytes(kStream));
  source_.class_count = 50304;
  EXPECT_EQ(open()->class_count(), 50304U);
  source_.class_count = 50256;
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("train.bin: token 2 (counted from 0) is 50256; accepted: integers from 0 to 50255"),
                    HasSubstr("data.vocab_size")));
  source_.checked_bytes = 8;  // a large file is checked as it is read
  const auto dataset = open();
  EXPECT_THAT(read(*dataset, {1}).features, ElementsAre(8, 9, 10));
  Batch batch;
  batch.samples = {0};
  EXPECT_THAT(read_batch(*dataset, batch).error().message, HasSubstr("token 2 (counted from 0) is 50256"));
  source_.class_count = 0;
  write("train.npy", npy<std::int32_t>("<i4", "(5,)", {1, 2, -1, 3, 4}));
  EXPECT_THAT(refusal(), HasSubstr("token 2 (counted from 0) is -1"));
}

TEST_F(Tokens, OfSomethingElseAreRefused) {
  write("train.txt", "some words");
  EXPECT_THAT(refusal(), HasSubstr("accepted as tokens: .npy files, and .bin files of uint16 or uint32"));
  write("train.bin", "odd");
  EXPECT_THAT(refusal(), HasSubstr("3 bytes are no array of tokens of 2 bytes each (data.token_dtype)"));
  std::vector<std::uint32_t> wide(40, 7);
  write("train.bin", as_bytes(wide));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("every other token is 0"), HasSubstr("data.token_dtype: uint32")));
  source_.token_type = TokenType::kUint16;  // where it is said so, it is
  EXPECT_EQ(open()->class_count(), 8U);
  source_.token_type = TokenType::kAuto;
  write("x.npy", npy<float>("<f4", "(9,)", std::vector<float>(9, 1)));
  EXPECT_THAT(refusal(), HasSubstr("real numbers of shape (9)"));
  write("x.npy", npy<std::int32_t>("<i4", "(1, 2, 2)", {1, 2, 3, 4}));
  EXPECT_THAT(refusal(), HasSubstr("shape (1, 2, 2)"));
  write("x.npy", npy<std::int32_t>("<i4", "(2, 2)", {1, 2, 3, 4}, 1, "True"));
  EXPECT_THAT(refusal(), HasSubstr("in Fortran order"));
  write("x.npy", npy<std::int32_t>("<i4", "(3,)", {1, 2, 3}));
  EXPECT_THAT(refusal(), HasSubstr("3 of its 3 tokens are used here; accepted: 4 or more"));
}

// Of a vocabulary of 128,256 the upper halves are 0 or 1.
TEST_F(Tokens, OfALargeVocabularyReadAs16BitsAreNoticed) {
  std::vector<std::uint32_t> wide;
  for (std::uint32_t i = 0; i < 40; ++i) wide.push_back(i * 3331 % 128256);
  write("train.bin", as_bytes(wide));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("every other token is below 256"), HasSubstr("data.token_dtype: uint32")));
  source_.token_type = TokenType::kUint32;
  const auto dataset = open();
  EXPECT_EQ(dataset->class_count(), 38U * 3331 + 1);
  EXPECT_THAT(read(*dataset, {8}).features, ElementsAre(24 * 3331, 25 * 3331, 26 * 3331));
}

TEST_F(Tokens, SmallOnesOf16BitsAreNotTakenForHalves) {
  std::vector<std::uint16_t> bytes, mixed;
  for (std::uint16_t i = 0; i < 40; ++i) {
    bytes.push_back(static_cast<std::uint16_t>(2 * i));
    mixed.push_back(i % 2 == 0 ? i : static_cast<std::uint16_t>(40000 + i));
  }
  write("train.bin", as_bytes(bytes));
  EXPECT_THAT(read(*open(), {1}).features, ElementsAre(6, 8, 10));
  bytes[0] = 256;  // one that begins the text
  write("train.bin", as_bytes(bytes));
  EXPECT_THAT(read(*open(), {0}).features, ElementsAre(256, 2, 4));
  write("train.bin", as_bytes(mixed));
  EXPECT_THAT(read(*open(), {1}).features, ElementsAre(40003, 4, 40005));
}

}  // namespace
}  // namespace motley::data
