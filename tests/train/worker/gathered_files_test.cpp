// What ranks in folders of their own bring together at the end of a run.
#include "motley/train/worker/gathered_files.h"

#include <gtest/gtest.h>

#include "motley/base/os/file.h"
#include "tests/collective/ranks.h"
#include "tests/temporary_folder.h"

namespace motley::train {
namespace {

constexpr std::size_t kMostBytes = 1 << 12;

std::string make_log(int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) text += fmt::format("line {}\n", line);
  return text;
}

// The second of two ranks has written this, and the first one gathers it; what is in the first one's folder then.
std::string gather_log(const std::string& text, const RunDirectory& first, const RunDirectory& second) {
  for (const RunDirectory* run : {&first, &second}) EXPECT_TRUE(make_folders(run->folder() / "logs"));
  EXPECT_TRUE(write_file(second.log_file(1), text));
  collective::run_threads(2, false, [&](int rank, collective::ThreadSession& session) {
    const int present[] = {0, 1};
    const auto gathered =
        gather_files(session, rank == 0 ? first : second, present, 0, Deadline::after(20), kMostBytes);
    EXPECT_TRUE(gathered) << gathered.error().message;
  });
  EXPECT_EQ(*read_file(second.log_file(1)), text);
  return read_file(first.log_file(1)).value_or("");
}

TEST(GatheredFiles, OfALogThatIsTooLongTheEndIsGathered) {
  const TemporaryFolder one, other;
  const RunDirectory first(one.path), second(other.path);
  const std::string small = make_log(100);
  ASSERT_LT(small.size(), kMostBytes);
  EXPECT_EQ(gather_log(small, first, second), small);

  const std::string large = make_log(5000);
  const std::string gathered = gather_log(large, first, second);
  EXPECT_LE(gathered.size(), kMostBytes);
  EXPECT_GT(gathered.size(), kMostBytes / 2);
  const std::size_t end = gathered.find('\n') + 1;
  EXPECT_TRUE(gathered.starts_with("[left out: the first ")) << gathered.substr(0, end);
  EXPECT_TRUE(gathered.substr(end).starts_with("line ")) << gathered.substr(end, 20);
  EXPECT_TRUE(large.ends_with(gathered.substr(end)));
}

TEST(GatheredFiles, ALogInACommonFolderStaysWhole) {
  const TemporaryFolder folder;
  const RunDirectory run(folder.path);
  const std::string large = make_log(5000);
  EXPECT_EQ(gather_log(large, run, run), large);
}

}  // namespace
}  // namespace motley::train
