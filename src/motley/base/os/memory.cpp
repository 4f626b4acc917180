#include "motley/base/os/memory.h"

#include <malloc.h>

#include <algorithm>

#include "motley/base/os/file.h"

namespace motley {

Result<Pages> Pages::allocate(std::size_t bytes, const char* what, bool is_used_whole) {
  Pages pages;
  pages.size_ = std::max<std::size_t>(bytes, 64);
  void* memory = ::mmap(nullptr, pages.size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kIo, "no memory for {} bytes of {}: {}", bytes, what, errno_text());
  }
  ::madvise(memory, pages.size_, is_used_whole ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  pages.data_ = static_cast<std::byte*>(memory);
  return pages;
}

void keep_freed_memory() {
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace motley
