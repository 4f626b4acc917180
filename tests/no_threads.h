// A process that gets no more threads from the system, as where a limit on their number is reached.
#pragma once

#include <pthread.h>

#include <cstddef>

namespace motley {

// No thread can be started as long as this lives: each would have a stack that is larger than all addresses.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&attributes_);
    ::pthread_attr_getstacksize(&attributes_, &stack_bytes_);
    set(std::size_t{1} << 60);
  }
  ~NoThreads() {
    set(stack_bytes_);
    ::pthread_attr_destroy(&attributes_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  void set(std::size_t stack_bytes) {
    ::pthread_attr_setstacksize(&attributes_, stack_bytes);
    ::pthread_setattr_default_np(&attributes_);
  }

  pthread_attr_t attributes_;
  std::size_t stack_bytes_ = 0;
};

}  // namespace motley
