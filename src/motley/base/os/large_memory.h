// Memory for tables that are accessed at random: from two megabytes on it lies on huge pages where the system has them,
// so that few address translations are needed. It is not touched here: what is not used costs nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace motley {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Throws std::bad_alloc; to be given back with std::free.
inline void* allocate_large(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (alignment == kHugePage) {
    ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish; what is left over takes small pages
  }
  return memory;
}

// For standard containers.
template <class T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <class U>
  explicit LargeAllocator(const LargeAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(allocate_large(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  bool operator==(const LargeAllocator&) const = default;
};

}  // namespace motley
