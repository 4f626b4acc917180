// A thread of a server that works on its shares of all jobs in turn, a segment at a time, so that no job waits for
// another's whole model and no tenant for another's many jobs. It sleeps in poll when there is nothing to do.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "motley/base/os/descriptor.h"
#include "motley/ps/dense/aggregation_task.h"
#include "motley/ps/dense/dense_metrics.h"
#include "motley/ps/tenants/weighted_round_robin.h"

namespace motley::ps {

class AggregationThread {
 public:
  // `pinned_to`: the processor that it may run on, if it is to have its own. `spins`: whether it looks out for work for
  // some microseconds before it sleeps.
  AggregationThread(std::optional<int> pinned_to, const std::atomic<bool>& spins, ThreadMetrics& metrics);
  ~AggregationThread();

  // From any thread; takes effect soon. A job has one share on a core. `weight`: of the tenant, among tenants.
  void add(std::uint64_t job, std::unique_ptr<AggregationTask> task, const std::string& tenant, int weight);
  void remove(std::uint64_t job);

 private:
  struct Request {
    std::uint64_t job;
    std::unique_ptr<AggregationTask> task;  // null: remove
    std::string tenant;
    int weight;
  };
  void request(Request request);
  void run();
  void take_requests();
  void serve_sockets(int milliseconds);
  void wake() const;

  const std::atomic<bool>& spins_;
  ThreadMetrics& metrics_;
  std::map<std::uint64_t, std::unique_ptr<AggregationTask>> tasks_;  // of the thread
  WeightedRoundRobin turns_;
  std::vector<pollfd> polled_;
  std::vector<std::pair<AggregationTask*, int>> owners_;  // of what is polled, after the first

  Descriptor wake_;
  std::mutex mutex_;  // guards the requests
  std::vector<Request> requests_;
  bool stop_ = false;
  std::atomic<bool> requested_ = false;
  std::thread thread_;
};

}  // namespace motley::ps
