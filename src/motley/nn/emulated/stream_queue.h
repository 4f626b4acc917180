// A stream's thread: does what it is given one after the other, in the order in which it was given.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace motley::nn::emulated {

// Any thread may use it. Its thread starts with the first task.
class StreamQueue {
 public:
  StreamQueue() = default;
  ~StreamQueue();  // once all is done
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  // Tasks throw nothing. Returns which task it is, counted from 1.
  std::uint64_t push(std::function<void()> task);
  std::uint64_t pushed() const;
  bool is_done(std::uint64_t task) const;
  void wait(std::uint64_t task) const;  // until it is done; 0 always is

 private:
  void run();

  mutable std::mutex mutex_;  // guards all below
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t pushed_ = 0;
  std::uint64_t done_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace motley::nn::emulated
