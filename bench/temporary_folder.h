// A folder for what a benchmark's processes read and write, which goes with this object.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "motley/base/os/file.h"
#include "motley/base/result.h"

namespace motley::bench {

class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create() {
    std::string name = (std::filesystem::temp_directory_path() / "motley-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      return fail(ErrorCode::kIo, "cannot make a temporary folder: {}", errno_text());
    }
    return TemporaryFolder(name);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace motley::bench
