// A folder of a test's own, removed with all that is in it.
#pragma once

#include <stdlib.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

namespace motley {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "motley-test-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    ::umount2(path.c_str(), MNT_DETACH);  // where a test has mounted something
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace motley
