// Anonymous mappings.
#include "motley/base/os/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "motley/base/os/file.h"

namespace motley {

Result<Pages> Pages::allocate(std::size_t bytes, const char* what) {
  Pages pages;
  pages.size_ = std::max<std::size_t>(bytes, 64);
  void* memory = ::mmap(nullptr, pages.size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kIo, "no memory for {} bytes of {}: {}", bytes, what, errno_text());
  }
  ::madvise(memory, pages.size_, MADV_HUGEPAGE);
  pages.data_ = static_cast<std::byte*>(memory);
  return pages;
}

Pages::~Pages() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace motley
