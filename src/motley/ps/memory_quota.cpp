#include "motley/ps/memory_quota.h"

#include <utility>

#include "motley/base/units.h"

namespace motley::ps {

MemoryQuota::Lease::Lease(MemoryQuota& quota, std::string tenant, std::string job)
    : quota_(quota), tenant_(std::move(tenant)), job_(std::move(job)) {}

MemoryQuota::Lease::~Lease() {
  give_back(bytes_);
}

Status MemoryQuota::Lease::take(std::size_t bytes) {
  const std::lock_guard lock(quota_.mutex_);
  const auto text = [](std::size_t amount) { return format_bytes(static_cast<double>(amount)); };
  const auto found = quota_.taken_.find(tenant_);
  const std::size_t taken = found == quota_.taken_.end() ? 0 : found->second;
  if (const std::size_t most = quota_.tenants_.quota_of(tenant_); most > 0 && (taken > most || bytes > most - taken)) {
    return fail(ErrorCode::kRefused, "job '{}' needs {} here; of the quota of tenant '{}', {}, {} are taken", job_,
                text(bytes), tenant_, text(most), text(taken));
  }
  quota_.taken_[tenant_] = taken + bytes;
  bytes_ += bytes;
  return {};
}

void MemoryQuota::Lease::give_back(std::size_t bytes) {
  const std::lock_guard lock(quota_.mutex_);
  bytes_ -= bytes;
  const auto taken = quota_.taken_.find(tenant_);
  if (taken == quota_.taken_.end()) return;
  taken->second -= bytes;
  if (taken->second == 0) quota_.taken_.erase(taken);
}

std::map<std::string, std::size_t> MemoryQuota::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

}  // namespace motley::ps
