// Whose segment a core takes next: tenants take turns, each for as many segments as its share says, and a tenant's jobs
// take turns within. So a tenant with many jobs gets no more than one with a single job while both have work, and
// whoever has none loses its turn and saves nothing up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace motley::ps {

class WeightedRoundRobin {
 public:
  void add(std::uint64_t job, const std::string& tenant, int share) {
    auto found = std::ranges::find(tenants_, tenant, &Tenant::name);
    if (found == tenants_.end()) found = tenants_.insert(tenants_.end(), {tenant, share, {}, 0});
    found->jobs.push_back(job);
  }
  void remove(std::uint64_t job) {
    for (Tenant& tenant : tenants_) {
      if (std::erase(tenant.jobs, job) > 0) tenant.next = 0;
    }
    std::erase_if(tenants_, [](const Tenant& tenant) { return tenant.jobs.empty(); });
    turn_ = 0;
    left_ = tenants_.empty() ? 0 : tenants_[0].share;
  }

  // Offers the turn to one job after the other until `work(job)` says that it took a segment; false if none did.
  template <class Work>
  bool take(Work work) {
    // The tenant whose turn it is comes again at the end: it may be the only one with work, its share used up.
    for (std::size_t tried = 0; tried <= tenants_.size() && !tenants_.empty(); ++tried) {
      Tenant& tenant = tenants_[turn_];
      for (std::size_t i = 0; left_ > 0 && i < tenant.jobs.size(); ++i) {
        const std::size_t at = (tenant.next + i) % tenant.jobs.size();
        if (!work(tenant.jobs[at])) continue;
        tenant.next = (at + 1) % tenant.jobs.size();
        --left_;
        return true;
      }
      turn_ = (turn_ + 1) % tenants_.size();
      left_ = tenants_[turn_].share;
    }
    return false;
  }

 private:
  struct Tenant {
    std::string name;
    int share = 1;
    std::vector<std::uint64_t> jobs;
    std::size_t next = 0;  // job
  };
  std::vector<Tenant> tenants_;
  std::size_t turn_ = 0;  // tenant
  int left_ = 0;          // segments of its turn
};

}  // namespace motley::ps
