// Large memory: zeroed pages straight from the system, and allocations for tables that are accessed at random. Both lie
// on huge pages where the system has them, so that few address translations are needed, and are really taken only where
// they are touched: a huge page as a whole.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include "motley/base/result.h"

namespace motley {

// Zeroed and aligned to pages.
class Pages {
 public:
  Pages() = default;
  // `what` says in the error what there was no memory for. What is not used whole lies on small pages.
  static Result<Pages> allocate(std::size_t bytes, const char* what, bool is_used_whole = true);
  ~Pages() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  template <class T>
  T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// From kHugePage bytes on it lies on huge pages. Throws std::bad_alloc; to be given back with std::free.
inline void* allocate_large(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) {
    ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish; what is left over takes small pages
  }
  return memory;
}

// Lets malloc keep what is freed: each training step frees what the next one needs again, and malloc would give large
// blocks back to the system, which zeroes every page of new ones. Call at the start; the process stays as large as it
// ever was.
void keep_freed_memory();

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
