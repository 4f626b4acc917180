// The bytes of a data file: mapped, or, of a gzip file or a pipe, in memory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "motley/base/os/mapped_file.h"
#include "motley/base/result.h"

namespace motley::data {

class FileBytes {
 public:
  // `limit`: of what is unpacked. A file that a Debian package brings is named with it where it is missing.
  static Result<std::shared_ptr<const FileBytes>> open(const std::filesystem::path& path, std::size_t limit);
  std::string_view view() const { return unpacked_.empty() ? mapped_.bytes() : unpacked_; }

 private:
  MappedFile mapped_;
  std::string unpacked_;
};

}  // namespace motley::data
