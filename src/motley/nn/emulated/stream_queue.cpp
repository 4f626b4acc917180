#include "motley/nn/emulated/stream_queue.h"

#include <utility>

#include "motley/base/os/signals.h"

namespace motley::nn::emulated {

StreamQueue::~StreamQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::uint64_t StreamQueue::push(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
  changed_.notify_all();
  return ++pushed_;
}

std::uint64_t StreamQueue::pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool StreamQueue::is_done(std::uint64_t task) const {
  const std::lock_guard lock(mutex_);
  return done_ >= task;
}

void StreamQueue::wait(std::uint64_t task) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= task; });
}

void StreamQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // and what it holds is gone before others hear that it is done
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace motley::nn::emulated
