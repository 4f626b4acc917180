// Output is read in parts that follow each other, and its last lines by themselves.
#include "motley/scheduling/service/job_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "motley/base/os/file.h"
#include "tests/temporary_folder.h"

namespace motley::scheduling {
namespace {

TEST(JobOutput, ComesInPartsThatFollowEachOther) {
  const TemporaryFolder folder;
  const auto file = folder.path / "output";
  EXPECT_EQ(read_output(file, 0, false)->text, "") << "nothing was printed yet";
  std::string whole;
  for (int line = 0; whole.size() < 3'000'000; ++line) whole += fmt::format("line {} ü\n", line);
  whole += "a line without an end";
  ASSERT_TRUE(write_file(file, whole));
  std::string read;
  std::int64_t next = 0;
  for (int part = 0; part < 10; ++part) {
    const auto one = read_output(file, next, true);
    ASSERT_TRUE(one) << one.error().message;
    if (one->text.empty()) break;
    const bool is_last = one->next == static_cast<std::int64_t>(whole.size());
    EXPECT_TRUE(is_last || one->text.ends_with('\n'));
    EXPECT_EQ(one->next, next + static_cast<std::int64_t>(one->text.size()));
    next = one->next;
    read += one->text;
  }
  EXPECT_EQ(read, whole);
  EXPECT_EQ(read_output(file, 1'000'000'000, true)->text, "") << "beyond the end";
}

// A part is text to who reads it: half a character would be none in either of two parts.
TEST(JobOutput, APartEndsWithAWholeCharacter) {
  const TemporaryFolder folder;
  const auto file = folder.path / "output";
  for (const std::string character : {"ü", "€", "😀"}) {
    for (std::size_t bytes = 1; bytes < character.size(); ++bytes) {
      ASSERT_TRUE(write_file(file, "so" + character.substr(0, bytes)));
      const auto part = read_output(file, 0, false);
      EXPECT_EQ(part->text, "so");
      EXPECT_EQ(part->next, 2);
      EXPECT_EQ(read_output(file, 2, false)->text, "") << "until the rest has been printed";
      EXPECT_EQ(read_output(file, 2, true)->text, character.substr(0, bytes)) << "no more will be";
      ASSERT_TRUE(write_file(file, "so" + character));
      EXPECT_EQ(read_output(file, 2, false)->text, character);
    }
  }
  for (const std::string invalid : {"\xff", "\xc0", "\xf8", "\x80\x80\x80\x80", "\xc3(", "\xf0\x9f\x98!"}) {
    ASSERT_TRUE(write_file(file, invalid));
    EXPECT_EQ(read_output(file, 0, false)->text, invalid) << "nothing that comes makes it a character";
  }
  // A part of a long line ends within a character.
  constexpr std::size_t kPart = 1 << 20;
  for (std::size_t missing = 0; missing < 4; ++missing) {
    const std::size_t before = kPart - 4 + missing;
    ASSERT_TRUE(write_file(file, std::string(before, 'x') + "😀" + std::string(kPart, 'x')));
    const auto first = read_output(file, 0, true);
    EXPECT_EQ(static_cast<std::size_t>(first->next), missing == 0 ? kPart : before);
    EXPECT_EQ(read_output(file, first->next, true)->text.front(), missing == 0 ? 'x' : '\xf0');
  }
}

TEST(JobOutput, HasItsLastLines) {
  const TemporaryFolder folder;
  const auto file = folder.path / "output";
  EXPECT_EQ(last_lines(file), "");
  for (const auto& [content, expected] :
       {std::pair("", ""), std::pair("one\n", "one"), std::pair("1\n2\n3\n4\n5\n6\n7\n", "3\n4\n5\n6\n7"),
        std::pair("a\n\nb", "a\n\nb")}) {
    ASSERT_TRUE(write_file(file, content));
    EXPECT_EQ(last_lines(file), expected);
  }
}

TEST(JobOutput, APipeInItsPlaceIsNotWaitedFor) {
  const TemporaryFolder folder;
  const auto file = folder.path / "output";
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  EXPECT_FALSE(read_output(file, 0, true));
  EXPECT_FALSE(read_end(file, 100));
  EXPECT_EQ(last_lines(file), "");
}

TEST(JobOutput, TheEndBeginsWithALine) {
  const TemporaryFolder folder;
  const auto file = folder.path / "output";
  ASSERT_TRUE(write_file(file, "first\nsecond\nthird"));
  EXPECT_EQ(*read_end(file, 100), "first\nsecond\nthird");
  EXPECT_EQ(*read_end(file, 10), "third");
}

}  // namespace
}  // namespace motley::scheduling
