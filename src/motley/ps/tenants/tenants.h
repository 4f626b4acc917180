// Who may use a server, proved by which secret, and how much of it each may take. A tenant is a namespace of jobs: its
// secret opens its own jobs and no other tenant's.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::ps {

// How many of each a tenant may have at a time, or has: what costs a server memory or threads before any quota counts.
struct TenantCounts {
  int connections = 0;
  int jobs = 0;     // of dense parts and of embedding tables, each for itself
  int threads = 0;  // of embeddings: one a connection, two a table that is also on disk
  int probes = 0;   // connections that measure a link

  int& operator[](int TenantCounts::* count) { return this->*count; }
};
inline constexpr int kMaxCap = 1'000'000;
inline constexpr TenantCounts kDefaultCaps = {.connections = 4096, .jobs = 256, .threads = 1024, .probes = 256};

struct TenantCap {
  const char* key;   // of the file of tenants; also a flag, of what it is by default
  const char* noun;  // what is counted
  int TenantCounts::* count;
};
inline constexpr std::array kTenantCaps = {
    TenantCap{"max_connections", "connections", &TenantCounts::connections},
    TenantCap{"max_jobs", "jobs", &TenantCounts::jobs},
    TenantCap{"max_threads", "threads for embeddings", &TenantCounts::threads},
    TenantCap{"max_probes", "probes of links", &TenantCounts::probes},
};

struct Tenant {
  net::Secret token;
  std::size_t quota_bytes = 0;  // memory of all its jobs together; 0: no limit
  int share = 1;                // segments that a core takes in the tenant's turn
  TenantCounts caps = kDefaultCaps;
};

class Tenants {
 public:
  // One token for all, whatever tenant they say they are: names only keep jobs apart, and caps are for all together.
  Tenants(net::Secret token, TenantCounts caps = kDefaultCaps)  // NOLINT(google-explicit-constructor)
      : others_{.token = std::move(token), .caps = caps} {}
  explicit Tenants(std::map<std::string, Tenant> tenants)
      : others_{net::Secret::generate()}, named_(std::move(tenants)) {}
  // A YAML file of mode 0600:
  //   tenants:
  //     - {name: vision, token_file: vision.token, quota: 16 GB, share: 2}
  //     - {name: speech, token: 5f0c..., max_jobs: 4}  # the token itself
  // A relative token_file is beside the file. No two tenants may have the same token. `caps` are those of a tenant for
  // which the file gives none.
  static Result<Tenants> read(const std::filesystem::path& file, TenantCounts caps = kDefaultCaps);

  // Whoever claims to be this tenant must prove to know its token. For a tenant that is not here that is a secret that
  // nobody knows, so that its handshake goes as one with a wrong token does.
  const Tenant& find(const std::string& name) const {
    const auto found = named_.find(name);
    return found == named_.end() ? others_ : found->second;
  }
  const std::map<std::string, Tenant>& named() const { return named_; }

 private:
  Tenant others_;
  std::map<std::string, Tenant> named_;
};

// How much of a server's memory each tenant's jobs have taken, dense jobs and sparse tables together, and that no
// tenant takes more than its quota. May be used from any thread.
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
    void release(std::size_t bytes);

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

// What each tenant's clients have of a server at the moment, and that no tenant has more than its caps. May be used
// from any thread.
class TenantUse {
 public:
  explicit TenantUse(const Tenants& tenants) : tenants_(tenants) {}

  using Amounts = std::vector<std::pair<int TenantCounts::*, int>>;
  // These count until the last copy of what it returns has gone, which this must outlive. kRefused, naming the cap, and
  // nothing counted where one of them would be more than the tenant may have.
  Result<std::shared_ptr<void>> take(const std::string& tenant, const Amounts& amounts);

 private:
  const Tenants& tenants_;
  std::mutex mutex_;
  std::map<const Tenant*, TenantCounts> taken_;
};

}  // namespace motley::ps
