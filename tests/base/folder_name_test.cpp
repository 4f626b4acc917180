#include "motley/base/os/file.h"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(FolderName, IsOneFolderBelowAnother) {
  for (const std::string_view name : {"job", "a.b_c-d e", "übung"}) {
    EXPECT_TRUE(check_folder_name(name)) << name;
  }
  EXPECT_TRUE(check_folder_name(std::string(200, 'a')));
  EXPECT_FALSE(check_folder_name(std::string(201, 'a')));
  for (const std::string_view name : {"", ".", "..", ".hidden", "a/b", "/tmp", "a\\b", "a\nb", "a\tb", "a:b", "a\x7f",
                                      "a\xff", "\xc3", "a\xc2\x9b"}) {
    EXPECT_FALSE(check_folder_name(name)) << name;
  }
  EXPECT_FALSE(check_folder_name(std::string_view("a\0b", 3)));
}

TEST(FolderName, IsRefusedWithWhatIsAccepted) {
  EXPECT_EQ(check_folder_name("a/b").error().message,
            "'a/b' is not the name of a folder; accepted: up to 200 letters, digits, spaces, '.', '_' and '-', not "
            "beginning with '.'");
}

TEST(FolderName, IsShownEscapedWhereItCannotBeRead) {
  const auto shown = [](std::string_view name) { return check_folder_name(name).error().message; };
  EXPECT_EQ(shown("a\x1b[2Jb\n").substr(0, 15), "'a\\x1b[2Jb\\x0a'");
  EXPECT_EQ(shown("\xc3\xbc\xff").substr(0, 8), "'\xc3\xbc\\xff'");
}

}  // namespace
}  // namespace motley
