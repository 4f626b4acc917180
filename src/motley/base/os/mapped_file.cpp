#include "motley/base/os/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"

namespace motley {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const auto cannot = [&] {
    return fail(errno == ENOENT ? ErrorCode::kInvalidInput : ErrorCode::kIo, "cannot read '{}': {}", path.string(),
                errno_text());
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file.valid() || ::fstat(file.get(), &status) != 0) return cannot();
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidInput, "cannot read '{}': it is no regular file", path.string());
  }
  MappedFile mapped;
  if (const auto size = static_cast<std::size_t>(status.st_size); size > 0) {
    void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return cannot();
    mapped.bytes_ = {static_cast<const char*>(memory), size};
  }
  return mapped;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace motley
