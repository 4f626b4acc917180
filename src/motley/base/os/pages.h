// Zeroed memory straight from the system: aligned to pages, large pages where the system gives them, and really taken
// only where it is touched.
#pragma once

#include <cstddef>

#include "motley/base/result.h"

namespace motley {

class Pages {
 public:
  Pages() = default;
  // `what` says in the error what there was no memory for.
  static Result<Pages> allocate(std::size_t bytes, const char* what);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

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

}  // namespace motley
