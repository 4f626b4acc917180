// Whether a session is well, as its watcher finds out: for the threads that use the session, which ask in every poll of
// a wait. All calls may come from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/roster.h"
#include "motley/net/session.h"

namespace motley::net {

class SessionHealth {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const { return failed() ? fail(failure()) : Status(); }  // one atomic read where all is well
  Error failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  // Its failure does not end.
  bool is_final() const {
    const std::lock_guard lock(mutex_);
    return is_final_;
  }

  // The first failure stands until it is over, unless a final one comes.
  void break_off(const Error& error, bool is_final) {
    const std::lock_guard lock(mutex_);
    fail_with(error, is_final);
  }

  // Of an elastic session: the ranks have changed, which breaks off what was begun among those of before. `newcomers`
  // of this epoch, by rank. At once, for who recovers has the epoch and no failure of its.
  void install(Epoch epoch, const std::map<int, Member>& newcomers) {
    const std::lock_guard lock(mutex_);
    installed_.push_back(std::move(epoch));
    for (const auto& [rank, member] : newcomers) newcomers_.insert_or_assign(rank, member);
    fail_with({ErrorCode::kPeerLost, "the ranks have changed", -1}, false);
  }
  void set_agreed(bool is_agreed) {
    const std::lock_guard lock(mutex_);
    is_agreed_ = is_agreed;
  }
  // The epochs since the last call, once there are any and no member of the last one is lost; `use` gets them first.
  // All is well after that.
  using Use = std::function<void(const Epoch& last, const std::map<int, Member>& newcomers)>;
  std::optional<std::vector<Epoch>> recover(const Use& use) {
    const std::lock_guard lock(mutex_);
    if (installed_.empty() || !is_agreed_ || is_final_) return std::nullopt;
    use(installed_.back(), newcomers_);
    newcomers_.clear();
    failed_.store(false, std::memory_order_release);
    return std::exchange(installed_, {});
  }

 private:
  void fail_with(const Error& error, bool is_final) {
    if (is_final_ || (failed() && !is_final)) return;
    failure_ = error;
    is_final_ = is_final;
    failed_.store(true, std::memory_order_release);
  }

  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Error failure_;  // where failed_
  bool is_final_ = false;
  std::vector<Epoch> installed_;     // and not yet returned by recover()
  std::map<int, Member> newcomers_;  // of these
  bool is_agreed_ = true;            // no rank is lost that is a member
};

}  // namespace motley::net
