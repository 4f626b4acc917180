// Waiting for other ranks: what every wait asks now and then, how it names those it waits for, and who moves bytes
// while some thread waits or none does.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/base/result.h"
#include "motley/net/connection.h"
#include "motley/net/region.h"
#include "motley/net/session.h"

namespace motley::collective {

// "rank 2 (last seen: step 12, backward, 3.2 s ago), rank 3 (...)", of ranks that are waited for.
inline std::string describe_ranks(const net::Session& session, const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) {
    const std::string seen = session.last_seen(rank);
    text += fmt::format("{}rank {}{}", text.empty() ? "" : ", ", session.job_rank(rank),
                        seen.empty() ? "" : fmt::format(" (last seen: {})", seen));
  }
  return text.empty() ? "this rank" : text;
}

// A connection broke with `error`. Its other end may have given up because a third rank was lost: then that is it.
inline Error find_cause(const net::Session& session, const Error& error) {
  return error.code == ErrorCode::kPeerLost ? net::first_cause(session, error) : error;
}

// A peer's memory. Where it is there no more, the peer may be lost, or has given it up as another one has left in
// order: then that is the error, and in an elastic job those who are left find out which.
inline Result<std::unique_ptr<net::Region>> map_of_peer(const net::Session& session, const net::RegionAddress& address,
                                                        std::size_t bytes) {
  auto region = net::Region::map(address, bytes);
  if (region) return region;
  Error cause = net::first_cause(session, region.error());
  if (session.options().is_elastic && cause.code == ErrorCode::kIo) cause.code = ErrorCode::kPeerLost;
  return fail(std::move(cause));
}

// An error if a rank is lost, or if the deadline has passed; `operation` ("all_gather, operation 17") says what was
// being done, and `missing()` returns the ranks that it waits for.
template <class Missing>
Status check_wait(const net::Session& session, const Deadline& deadline, const std::string& operation,
                  const Missing& missing) {
  if (const Status health = session.health(); !health) return fail(health.error().within(operation));
  if (!deadline.passed()) return {};
  const std::vector<int> ranks = missing();
  return fail(Error{ErrorCode::kTimeout,
                    fmt::format("{}: timeout after {:.3g} s of waiting for {}", operation, deadline.allowed(),
                                describe_ranks(session, ranks)),
                    ranks.empty() ? -1 : session.job_rank(ranks.front())});
}

inline constexpr double kHealthSeconds = 0.02;  // between two looks at the session while waiting

// The next message of a rank's connection. `what` says what is waited for.
inline Result<net::Message> next_message(const net::Session& session, net::Connection& from, int peer,
                                         const std::string& what, const Deadline& deadline) {
  for (;;) {
    auto message = from.receive(Deadline::after(std::min(kHealthSeconds, deadline.remaining())), what);
    if (message) return message;
    if (message.error().code != ErrorCode::kTimeout) return fail(find_cause(session, message.error()).within(what));
    MOTLEY_TRY(check_wait(session, deadline, what, [peer] { return std::vector<int>{peer}; }));
  }
}

// What is driven. All is called under the driver's lock.
class Channels {
 public:
  virtual ~Channels() = default;
  // Does what can be done now. True if anything moved, so that it should be called again.
  virtual Result<bool> advance() = 0;
  virtual bool idle() const = 0;
};

// Who moves bytes over the channels of an exchange, and when: the thread in wait() does all the work while there is
// one; else, where the worker leaves buckets alone for long enough to make that worth while, a helper thread does. One
// mutex decides whose turn it is, and nobody sleeps while holding it.
class ChannelDriver {
 public:
  // When a bucket was started, and how long it was then left alone.
  struct Patience {
    double started_at = 0;
    double left_alone = 1;
  };
  struct Wait {
    std::function<bool()> done;
    std::function<std::vector<int>()> ranks;  // that it waits for
    std::function<std::string()> operation;   // "step 12, bucket 3"
  };

  ChannelDriver(net::Session& session, Channels& channels) : session_(session), channels_(channels) {}
  ~ChannelDriver() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      if (with_helper_) eventfd_write(wakeup_.get(), 1);
    }
    wake_.notify_all();
    if (helper_.joinable()) helper_.join();
  }

  // Each of the channels' connections, first; it must outlive the driver.
  void add(const net::Connection& connection) { connections_.push_back(&connection); }
  // Over all of them, frames' headers included.
  std::uint64_t bytes_sent() const {
    std::uint64_t bytes = 0;
    for (const net::Connection* connection : connections_) bytes += connection->bytes_sent();
    return bytes;
  }
  // Once, before channels carry anything. `may_spin`: every thread of the exchange has a core.
  Status begin(bool may_spin, bool with_helper) {
    may_spin_ = may_spin;
    with_helper_ = with_helper;
    if (with_helper) {
      wakeup_ = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
      if (!wakeup_.valid()) return fail(ErrorCode::kIo, "cannot make an eventfd: {}", errno_text());
      helper_ = std::thread([this] { help(); });
    }
    return {};
  }

  // The lock, with precedence over the helper.
  std::unique_lock<std::mutex> lock() {
    ++waiting_for_lock_;
    std::unique_lock lock(mutex_);
    --waiting_for_lock_;
    return lock;
  }

  // Something was queued; under the lock.
  void started(Patience& patience) {
    if (!with_helper_) return;
    patience.started_at = monotonic_seconds();
    helping_ = helping_ || patience.left_alone > kMinHelperSeconds;
    if (helping_ && helper_polls_) eventfd_write(wakeup_.get(), 1);
    if (helping_ && !helper_polls_) wake_.notify_one();
  }

  // Until done() or an error, which is final: every later call returns it. The lock is held on entry and on return.
  Status wait(std::unique_lock<std::mutex>& lock, Patience& patience, const Deadline& deadline, const Wait& what) {
    if (with_helper_) patience.left_alone = monotonic_seconds() - patience.started_at;
    waiting_ = true;
    std::vector<pollfd> descriptors;
    double moved_at = monotonic_seconds();
    while (!broken_ && !what.done()) {
      const auto moved = channels_.advance();
      if (!moved) {
        fail_advance(lock, moved.error(), what.operation());
        break;
      }
      const double now = monotonic_seconds();
      if (*moved) moved_at = now;
      if (now < deadline.at() && (*moved || (may_spin_ && now < moved_at + kSpinSeconds))) continue;
      if (what.done()) break;  // just now, though it be late
      if (const Status fine = check_wait(session_, deadline, what.operation(), what.ranks); !fine) {
        break_with(fine.error());
        break;
      }
      list_descriptors(descriptors);
      lock.unlock();
      ::poll(descriptors.data(), descriptors.size(), kPollMilliseconds);
      lock.lock();
      moved_at = 0;
    }
    waiting_ = false;
    helping_ = helping_ && !broken_ && !channels_.idle();
    if (helping_) wake_.notify_one();
    return status();
  }

  // Under the lock.
  void break_with(const Error& error) {
    if (!broken_) broken_ = error;
  }
  Status status() const {
    if (broken_) return fail(*broken_);
    return {};
  }

 private:
  static constexpr int kPollMilliseconds = 20;
  static constexpr double kSpinSeconds = 50e-6;
  // The helper is woken for a bucket only if the worker left it alone for longer than this the last time.
  static constexpr double kMinHelperSeconds = 100e-6;

  void help() {
    std::vector<pollfd> descriptors;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || (helping_ && !waiting_ && !broken_); });
      if (stop_) return;
      const auto moved = channels_.advance();
      if (!moved) {
        fail_advance(lock, moved.error(), "");
        continue;
      }
      if (channels_.idle()) {
        helping_ = false;
        continue;
      }
      if (*moved) {
        // A thread that wants to wait or to start gets its turn.
        lock.unlock();
        while (waiting_for_lock_ > 0) std::this_thread::yield();
        lock.lock();
        continue;
      }
      list_descriptors(descriptors);
      descriptors.push_back({wakeup_.get(), POLLIN, 0});
      helper_polls_ = true;
      lock.unlock();
      ::poll(descriptors.data(), descriptors.size(), kPollMilliseconds);
      lock.lock();
      helper_polls_ = false;
      eventfd_t wakeups;
      eventfd_read(wakeup_.get(), &wakeups);
    }
  }

  void list_descriptors(std::vector<pollfd>& descriptors) const {
    descriptors.clear();
    for (const net::Connection* connection : connections_) {
      const int events =
          (connection->pending_receives() > 0 ? POLLIN : 0) | (connection->wants_to_write() ? POLLOUT : 0);
      if (events != 0) descriptors.push_back({connection->descriptor(), static_cast<short>(events), 0});
    }
  }

  void fail_advance(std::unique_lock<std::mutex>& lock, const Error& error, const std::string& operation) {
    lock.unlock();
    const Error cause = find_cause(session_, error);
    lock.lock();
    break_with(operation.empty() ? cause : cause.within(operation));
  }

  net::Session& session_;
  Channels& channels_;
  std::vector<const net::Connection*> connections_;
  bool may_spin_ = false;
  bool with_helper_ = false;
  Descriptor wakeup_;  // wakes the helper from poll

  std::mutex mutex_;  // guards all below, and the channels
  std::condition_variable wake_;
  std::atomic<int> waiting_for_lock_ = 0;  // threads that want the lock before the helper
  bool stop_ = false;
  bool helping_ = false;
  bool waiting_ = false;
  bool helper_polls_ = false;
  std::optional<Error> broken_;
  std::thread helper_;
};

}  // namespace motley::collective
