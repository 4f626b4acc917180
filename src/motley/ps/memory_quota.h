// How much of a server's memory each tenant's jobs have taken, dense jobs and sparse tables together, and that no
// tenant takes more than its quota. May be used from any thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "motley/ps/tenants.h"

namespace motley::ps {

class MemoryQuota {
 public:
  explicit MemoryQuota(const Tenants& tenants) : tenants_(tenants) {}

  // What one job has taken; it goes back with the lease. The quota must outlive it.
  class Lease {
   public:
    Lease(MemoryQuota& quota, std::string tenant, std::string job);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    // kRefused, and nothing taken, where the tenant's jobs would have more than its quota.
    Status take(std::size_t bytes);
    void give_back(std::size_t bytes);

   private:
    MemoryQuota& quota_;
    const std::string tenant_;
    const std::string job_;  // for messages
    std::size_t bytes_ = 0;  // under the quota's mutex
  };

  // By tenant, of those that have taken any.
  std::map<std::string, std::size_t> taken() const;

 private:
  const Tenants& tenants_;
  mutable std::mutex mutex_;
  std::map<std::string, std::size_t> taken_;
};

}  // namespace motley::ps
