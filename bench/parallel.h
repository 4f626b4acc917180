// Work of a benchmark that is computed, not timed, on a few threads.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace motley::bench {

// Calls work(0) .. work(count - 1) on two threads.
inline void in_parallel(int count, const std::function<void(int)>& work) {
  constexpr int kThreads = 2;
  std::atomic<int> next = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int i = next++; i < count; i = next++) work(i);
    });
  }
}

}  // namespace motley::bench
