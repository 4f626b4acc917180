// Files are replaced whole or not at all, and the checksum is the published one.
#include "motley/base/os/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "motley/base/os/mapped_file.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  fs::path folder_ = fs::temp_directory_path() / ("motley_file_test_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
};

TEST_F(FileTest, WritesAndReadsBack) {
  ASSERT_TRUE(write_file(folder_ / "a", "one"));
  ASSERT_TRUE(write_file(folder_ / "a", "two"));
  EXPECT_EQ(*read_file(folder_ / "a"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "nothing is left beside it";
}

TEST_F(FileTest, AMappedFileHasItsBytes) {
  ASSERT_TRUE(write_file(folder_ / "a", "some bytes"));
  auto mapped = MappedFile::open(folder_ / "a");
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(mapped->bytes(), "some bytes");
  MappedFile other = std::move(*mapped);
  ASSERT_TRUE(write_file(folder_ / "a", "replaced"));
  EXPECT_EQ(other.bytes(), "some bytes") << "of the file that was opened";
  ASSERT_TRUE(write_file(folder_ / "empty", ""));
  other = std::move(MappedFile::open(folder_ / "empty").value());
  EXPECT_EQ(other.bytes(), "");
  const auto missing = MappedFile::open(folder_ / "none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalidInput);
  EXPECT_NE(missing.error().message.find("none': No such file"), std::string::npos) << missing.error().message;
  EXPECT_NE(MappedFile::open(folder_).error().message.find("it is no regular file"), std::string::npos);
}

TEST_F(FileTest, AFullDiskKeepsTheOldContent) {
  // /dev/full refuses every write; a link to it in place of the file written aside stands for a full disk.
  ASSERT_TRUE(write_file(folder_ / "a", "old"));
  fs::create_symlink("/dev/full", folder_ / ("a.part-" + std::to_string(::getpid())));
  const Status status = write_file(folder_ / "a", "new");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("No space left"), std::string::npos) << status.error().message;
  EXPECT_EQ(*read_file(folder_ / "a"), "old");
}

TEST_F(FileTest, ErrorsNameThePath) {
  const auto missing = read_file(folder_ / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalidInput);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
  ASSERT_TRUE(write_file(folder_ / "large", std::string(100, 'x')));
  EXPECT_FALSE(read_file(folder_ / "large", 99));
}

TEST_F(FileTest, ReadsTheEndOfALongFile) {
  ASSERT_TRUE(write_file(folder_ / "a", "0123456789"));
  EXPECT_EQ(*read_end(folder_ / "a", 4), "6789");
  EXPECT_EQ(*read_end(folder_ / "a", 10), "0123456789");
  EXPECT_EQ(*read_end(folder_ / "a", 1000), "0123456789");
  EXPECT_EQ(*read_end(folder_ / "a", 0), "");
  const auto missing = read_end(folder_ / "missing", 4);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kInvalidInput);
}

TEST(Crc32c, MatchesThePublishedVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);            // the check value of CRC-32C
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("6789", crc32c("12345")), 0xe3069283U) << "continues";
}

TEST(Crc64, MatchesThePublishedVector) {
  const std::string_view digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  EXPECT_EQ(crc64(bytes), 0x995dc9bbdf1939faU);  // the check value of CRC-64/XZ
  EXPECT_EQ(crc64(bytes.last(4), crc64(bytes.first(5))), 0x995dc9bbdf1939faU) << "continues";
}

}  // namespace
}  // namespace motley
