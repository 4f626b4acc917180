// The rule for files that commands write: those that exist are kept unless replacing them is asked for.
#include "motley/cli/output_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/example_program.h"
#include "tests/temporary_folder.h"

namespace motley::cli {
namespace {

using testing::HasSubstr;

class OutputFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::current_path(folder_.path); }
  void TearDown() override { std::filesystem::current_path(before_); }

  // "" where all is accepted.
  static std::string check(const std::string& line, bool overwrite = false) {
    ExampleProgram program;
    EXPECT_EQ(program.parse(line), nullptr);
    const Status status = check_output_files(*program.app.get_subcommand("plan"), overwrite);
    if (status) return "";
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidInput);
    return status.error().message;
  }

  std::filesystem::path before_ = std::filesystem::current_path();
  TemporaryFolder folder_;
};

TEST_F(OutputFiles, ThatExistAreKept) {
  EXPECT_EQ(check("plan"), "");
  std::ofstream("plan.json") << "precious";
  EXPECT_EQ(check("plan"), "--output: 'plan.json' exists; accepted: another file, or --overwrite to replace it");
  EXPECT_EQ(check("plan", true), "");
  EXPECT_EQ(check("plan --output other.json"), "");
  EXPECT_THAT(check("plan --output other.json --html ./plan.json"), HasSubstr("--html: './plan.json' exists"));
  EXPECT_EQ(check("plan --output /dev/null"), "") << "what is written there is lost in any case";
}

TEST_F(OutputFiles, MustBeWritable) {
  EXPECT_THAT(check("plan --output nowhere/plan.json"), HasSubstr("--output: cannot write 'nowhere/plan.json'"));
  EXPECT_THAT(check("plan --output .", true), HasSubstr("it is a folder"));
}

TEST_F(OutputFiles, ReplaceNeitherInputsNorEachOther) {
  std::ofstream("profile.json") << "precious";
  EXPECT_EQ(check("plan --profile profile.json --output ./profile.json", true),
            "--output: './profile.json' is the file of --profile; accepted: another file");
  EXPECT_EQ(check("plan --output a --html ./a"), "--html: './a' is the file of --output; accepted: another file");
}

TEST_F(OutputFiles, AreThoseOfCommandsThatWriteAny) {
  const ExampleProgram program;
  EXPECT_TRUE(writes_files(*program.app.get_subcommand("plan")));
  EXPECT_FALSE(writes_files(*program.app.get_subcommand("train")));
}

}  // namespace
}  // namespace motley::cli
