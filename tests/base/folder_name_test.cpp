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
  for (const std::string_view name :
       {"", ".", "..", ".hidden", "a/b", "/tmp", "a\\b", "a\nb", "a\tb", "a:b", "a\x7f"}) {
    EXPECT_FALSE(check_folder_name(name)) << name;
  }
  EXPECT_FALSE(check_folder_name(std::string_view("a\0b", 3)));
}

TEST(FolderName, IsRefusedWithWhatIsAccepted) {
  EXPECT_EQ(check_folder_name("a/b").error().message,
            "'a/b' is not the name of a folder; accepted: up to 200 letters, digits, spaces, '.', '_' and '-', not "
            "beginning with '.'");
}

}  // namespace
}  // namespace motley
