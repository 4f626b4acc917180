// A file's bytes where they are, mapped and not read: pages come from the disk as they are used, and may go again, so
// that a file may be larger than the memory. A file that is changed while it is mapped shows its new bytes; one that is
// cut short ends who reads on.
#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include "motley/base/result.h"

namespace motley {

class MappedFile {
 public:
  // Of a regular file. Errors name the path, as those of read_file.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace motley
