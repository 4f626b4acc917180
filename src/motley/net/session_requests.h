// What the threads that use a session ask of its watcher, and what it has done of that. All calls may come from any
// thread; those of the watcher are named so.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "motley/net/connection.h"
#include "motley/net/messages.h"
#include "motley/net/wait_set.h"

namespace motley::net {

class SessionRequests {
 public:
  struct Control {
    int peer = 0;
    std::unique_ptr<Connection> connection;
    std::optional<Member> member;  // where it has not been known
  };
  struct Taken {
    std::vector<AbortMessage> reports;  // of this rank
    std::vector<Control> controls;      // that other threads have made
    std::vector<int> ready;             // whom this newcomer is connected to, to be told so
    bool leaves = false;
    bool renews = false;
  };
  explicit SessionRequests(const WaitSet& watcher) : watcher_(watcher) {}

  void report(AbortMessage report) {
    ask([&] {
      taken_.reports.push_back(std::move(report));
      are_sent_ = false;
    });
  }
  void take_over(Control control) {
    ask([&] {
      connected_.insert(control.peer);
      taken_.controls.push_back(std::move(control));
    });
  }
  void be_ready(std::vector<int> connected) {
    ask([&] { taken_.ready = std::move(connected); });
  }
  void renew() {
    ask([&] { taken_.renews = true; });
  }
  void leave() {
    ask([&] { taken_.leaves = true; });
  }
  void stop() {
    ask([&] { stops_ = true; });
  }

  // Ranks to which there are control connections.
  bool is_connected(int rank) const {
    const std::lock_guard lock(mutex_);
    return connected_.contains(rank);
  }
  std::size_t connected() const {
    const std::lock_guard lock(mutex_);
    return connected_.size();
  }
  bool are_sent() const {  // nothing waits to be sent
    const std::lock_guard lock(mutex_);
    return are_sent_;
  }
  // Until that is so, asked whenever the watcher has done something, or that time has passed.
  void wait(double seconds, const std::function<bool()>& is_so) const {
    const Deadline deadline = Deadline::after(seconds);
    while (!is_so() && !deadline.passed()) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::duration<double>(std::clamp(deadline.remaining(), 0.0, kLookSeconds)));
    }
  }

  // The watcher's: what was asked since. It is asked to leave for good.
  Taken take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(taken_, {.leaves = taken_.leaves});
  }
  // The watcher's: where it stands. False where it is to end.
  bool publish(std::set<int> connected, bool nothing_waits) {
    const std::lock_guard lock(mutex_);
    connected_ = std::move(connected);
    for (const Control& control : taken_.controls) connected_.insert(control.peer);
    are_sent_ = taken_.reports.empty() && nothing_waits;
    changed_.notify_all();
    return !stops_;
  }

 private:
  static constexpr double kLookSeconds = 0.01;  // between two looks, should a word be missed

  void ask(const std::function<void()>& note) {
    const std::lock_guard lock(mutex_);
    note();
    watcher_.wake();
  }

  const WaitSet& watcher_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Taken taken_;
  std::set<int> connected_;
  bool stops_ = false;
  bool are_sent_ = true;
};

}  // namespace motley::net
