// Sparse tables as a service: a thread for each rank's connection, which reads its requests and answers them from the
// job's tables, so that ranks and jobs do not wait for each other but where a step makes them.
#pragma once

#include <atomic>
#include <deque>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "motley/base/os/descriptor.h"
#include "motley/net/connection.h"
#include "motley/net/handshake.h"
#include "motley/ps/embedding/sparse_job.h"

namespace motley::ps {

class SparseService {
 public:
  // `tenants`, `memory` and `use` must outlive it.
  SparseService(SparseLimits limits, const Tenants& tenants, MemoryQuota& memory, TenantUse& use)
      : limits_(std::move(limits)), tenants_(tenants), memory_(memory), use_(use) {}
  ~SparseService();

  // Takes over a connection whose purpose is sparse tables, or says why it is refused and leaves it where it is. Never
  // blocks; with reap() on one thread.
  Status admit(const net::Claim& claim, std::unique_ptr<net::Connection>& connection);
  // Gives back what ended connections held.
  void reap();

  // Of all jobs; from any thread.
  std::vector<SparseJobMetrics> metrics() const;

 private:
  struct Line {
    std::thread thread;
    std::atomic<bool> over = false;
  };
  struct Known {  // the last job of a name
    std::uint64_t session = 0;
    std::weak_ptr<SparseJob> job;  // owned by its lines
    std::shared_future<void> end;
    std::set<int> ranks;          // that have come
    std::shared_ptr<void> place;  // as the tenant's jobs are counted
  };

  template <class Work>
  Status start_line(Work work);

  const SparseLimits limits_;
  const Tenants& tenants_;
  MemoryQuota& memory_;
  TenantUse& use_;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;           // guards the jobs
  std::map<std::string, Known> jobs_;  // by "tenant/job"
  std::list<Line> lines_;
};

}  // namespace motley::ps
