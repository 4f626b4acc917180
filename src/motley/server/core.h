// A thread of a server that works on its shares of all jobs in turn, a segment of each at a time, so that no job waits
// for another's whole model. It sleeps in poll when there is nothing to do.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "motley/server/core_task.h"
#include "motley/transport/descriptor.h"

namespace motley::server {

class Core {
 public:
  // `pinned_to`: the processor that it may run on, if it is to have its own. `spins`: whether it looks out for work for
  // some microseconds before it sleeps.
  Core(std::optional<int> pinned_to, const std::atomic<bool>& spins);
  ~Core();

  // From any thread; takes effect soon. A job has one share on a core.
  void add(std::uint64_t job, std::unique_ptr<CoreTask> share);
  void remove(std::uint64_t job);

 private:
  void run();
  void take_requests();
  void serve_sockets(int milliseconds);
  void wake() const;

  const std::atomic<bool>& spins_;
  std::map<std::uint64_t, std::unique_ptr<CoreTask>> shares_;  // of the thread
  std::vector<pollfd> polled_;
  std::vector<std::pair<CoreTask*, int>> owners_;  // of what is polled, after the first

  transport::Descriptor wake_;
  std::mutex mutex_;                                                           // guards the requests
  std::vector<std::pair<std::uint64_t, std::unique_ptr<CoreTask>>> requests_;  // null: remove
  bool stop_ = false;
  std::atomic<bool> requested_ = false;
  std::thread thread_;
};

}  // namespace motley::server
