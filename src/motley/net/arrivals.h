// Connections that other ranks have opened to this one, until whoever waits for one takes it. All calls may come from
// any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "motley/net/connection.h"

namespace motley::net {

class Arrivals {
 public:
  struct Key {
    std::uint64_t epoch = 0;
    int peer = 0;
    std::uint32_t purpose = 0;
    auto operator<=>(const Key&) const = default;
  };

  // A second one for the same purpose is another attempt of a rank whose first one went wrong.
  void put(const Key& key, std::unique_ptr<Connection> connection) {
    const std::lock_guard lock(mutex_);
    by_key_[key] = std::move(connection);
    changed_.notify_all();
  }
  // Null where none has come by the deadline, or the wait is `cancelled`, which is asked every 0.1 s.
  std::unique_ptr<Connection> take(const Key& key, const Deadline& deadline, const std::function<bool()>& cancelled) {
    std::unique_lock lock(mutex_);
    while (!by_key_.contains(key)) {
      if (cancelled() || deadline.passed()) return nullptr;
      changed_.wait_for(lock, std::chrono::duration<double>(std::min(0.1, deadline.remaining())));
    }
    return std::move(by_key_.extract(key).mapped());
  }
  void forget_before(std::uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(by_key_, [epoch](const auto& arrival) { return arrival.first.epoch < epoch; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::unique_ptr<Connection>> by_key_;
};

}  // namespace motley::net
