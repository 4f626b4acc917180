#include "motley/data/local/file_bytes.h"

#include "motley/base/os/file.h"
#include "motley/data/local/dataset.h"
#include "motley/data/local/formats.h"

namespace motley::data {

Result<std::shared_ptr<const FileBytes>> FileBytes::open(const std::filesystem::path& path, std::size_t limit) {
  if (const std::string hint = install_hint(path); !hint.empty() && !std::filesystem::exists(path)) {
    return fail(ErrorCode::kUnavailable, "cannot read '{}'{}", path.string(), hint);
  }
  auto file = std::make_shared<FileBytes>();
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {  // a pipe, or an error
    MOTLEY_ASSIGN(file->unpacked_, read_file(path, limit));
  } else {
    MOTLEY_ASSIGN(file->mapped_, MappedFile::open(path));
  }
  if (is_gzip(file->view())) {
    MOTLEY_ASSIGN(file->unpacked_, gunzip(file->view(), path.string(), limit));
    file->mapped_ = MappedFile();
  }
  return file;
}

}  // namespace motley::data
