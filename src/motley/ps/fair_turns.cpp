// Who is in the round.
#include "motley/ps/fair_turns.h"

#include <algorithm>

namespace motley::ps {

void FairTurns::add(std::uint64_t job, const std::string& tenant, int share) {
  auto found = std::ranges::find(tenants_, tenant, &Tenant::name);
  if (found == tenants_.end()) found = tenants_.insert(tenants_.end(), {tenant, share, {}, 0});
  found->jobs.push_back(job);
}

void FairTurns::remove(std::uint64_t job) {
  for (Tenant& tenant : tenants_) {
    if (std::erase(tenant.jobs, job) > 0) tenant.next = 0;
  }
  std::erase_if(tenants_, [](const Tenant& tenant) { return tenant.jobs.empty(); });
  turn_ = 0;
  left_ = tenants_.empty() ? 0 : tenants_[0].share;
}

}  // namespace motley::ps
