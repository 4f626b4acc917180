// Who moves bytes over the lanes of an exchange, and when: the thread in wait() does all the work while there is one;
// else, where the worker leaves buckets alone for long enough to make that worth while, a helper thread does. One mutex
// decides whose turn it is, and nobody sleeps while holding it.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::collective {

// What is driven. All is called under the driver's lock.
class Lanes {
 public:
  virtual ~Lanes() = default;
  // Does what can be done now. True if anything moved, so that it should be called again.
  virtual Result<bool> advance() = 0;
  virtual bool idle() const = 0;
  // What to poll for.
  virtual void list_descriptors(std::vector<pollfd>& descriptors) const = 0;
};

class LaneDriver {
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

  LaneDriver(net::Session& session, Lanes& lanes) : session_(session), lanes_(lanes) {}
  ~LaneDriver();

  // Once, before lanes carry anything. `may_spin`: every thread of the exchange has a core.
  Status begin(bool may_spin, bool with_helper);
  // The lock, with precedence over the helper.
  std::unique_lock<std::mutex> lock();
  // Something was queued; under the lock.
  void started(Patience& patience);
  // Until done() or an error, which is final: every later call returns it. The lock is held on entry and on return.
  Status wait(std::unique_lock<std::mutex>& lock, Patience& patience, const Deadline& deadline, const Wait& what);
  // Under the lock.
  void break_with(const Error& error);
  Status status() const;

 private:
  void help();
  void fail_advance(std::unique_lock<std::mutex>& lock, const Error& error, const std::string& operation);

  net::Session& session_;
  Lanes& lanes_;
  bool may_spin_ = false;
  bool with_helper_ = false;
  int doorbell_ = -1;  // wakes the helper from poll

  std::mutex mutex_;  // guards all below, and the lanes
  std::condition_variable wake_;
  std::atomic<int> knocking_ = 0;  // threads that want the lock before the helper
  bool stop_ = false;
  bool helping_ = false;
  bool waiting_ = false;
  bool helper_polls_ = false;
  std::optional<Error> broken_;
  std::thread helper_;
};

}  // namespace motley::collective
