// Who may use a server, proved by which secret, and how much of it each may take. A tenant is a namespace of jobs: its
// secret opens its own jobs and no other tenant's.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>

#include "motley/base/result.h"
#include "motley/net/session.h"

namespace motley::ps {

struct Tenant {
  net::Secret token;
  std::size_t quota_bytes = 0;  // memory of all its jobs together; 0: no limit
  int share = 1;                // segments that a core takes in the tenant's turn
};

class Tenants {
 public:
  // One token for all, whatever tenant they say they are: names only keep jobs apart.
  Tenants(net::Secret token) : others_{std::move(token)} {}  // NOLINT(google-explicit-constructor)
  explicit Tenants(std::map<std::string, Tenant> tenants)
      : others_{net::Secret::generate()}, named_(std::move(tenants)) {}
  // A YAML file of mode 0600:
  //   tenants:
  //     - {name: vision, token_file: vision.token, quota: 16 GB, share: 2}
  //     - {name: speech, token: 5f0c...}      # the token itself
  // A relative token_file is beside the file. No two tenants may have the same token.
  static Result<Tenants> read(const std::filesystem::path& file);

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

}  // namespace motley::ps
