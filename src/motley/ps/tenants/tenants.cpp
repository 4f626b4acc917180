#include "motley/ps/tenants/tenants.h"

#include <algorithm>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/net/secret.h"
#include "motley/serial/strict_yaml.h"

namespace motley::ps {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxShare = 1000;
constexpr double kMaxQuota = 1e18;  // bytes

// The token that stands in the entry or in the file that it names.
Result<net::Secret> read_token(const cluster::StrictYaml& entry, const std::filesystem::path& folder) {
  const bool named = entry.has("token_file");
  if (named == entry.has("token")) return fail(ErrorCode::kInvalidInput, "needs either token_file or token");
  if (named) return net::Secret::from_file(folder / entry.text("token_file"));
  return net::Secret::from_text(entry.text("token"), "token");
}

}  // namespace

Result<Tenants> Tenants::read(const std::filesystem::path& file, TenantCounts caps) {
  MOTLEY_ASSIGN(const std::string text, net::read_private_file(file, kMaxFileBytes));
  MOTLEY_ASSIGN(const auto yaml, cluster::StrictYaml::parse(text, file.string()));
  std::map<std::string, Tenant> tenants;
  for (const cluster::StrictYaml& entry : yaml.list("tenants", {.min_size = 1})) {
    const std::string name = entry.text("name");
    if (const Status plain = check_folder_name(name); !plain) entry.refuse("name", plain.error().message);
    const double quota = entry.bytes("quota", {.min = 0, .max = kMaxQuota, .fallback = 0});
    if (quota > 0 && quota < 1) {
      entry.refuse("quota", "is less than a byte; accepted: 0 for no limit, or a byte and more");
    }
    const std::int64_t share = entry.integer("share", {.min = 1, .max = kMaxShare, .fallback = 1});
    TenantCounts own = caps;
    for (const TenantCap& cap : kTenantCaps) {
      own[cap.count] =
          static_cast<int>(entry.integer(cap.key, {.min = 1, .max = kMaxCap, .fallback = caps[cap.count]}));
    }
    auto token = read_token(entry, file.parent_path());
    if (!token) {
      entry.refuse("", token.error().message);
      continue;
    }
    const auto same =
        std::ranges::find_if(tenants, [&](const auto& other) { return other.second.token.bytes() == token->bytes(); });
    if (same != tenants.end()) {
      entry.refuse("", fmt::format("has the token of tenant '{}'; each needs one of its own", same->first));
    }
    const Tenant tenant{std::move(*token), static_cast<std::size_t>(quota), static_cast<int>(share), own};
    if (!tenants.emplace(name, tenant).second) {
      entry.refuse("name", fmt::format("there is a tenant '{}' already", name));
    }
  }
  MOTLEY_TRY(yaml.finish());
  return Tenants(std::move(tenants));
}

MemoryQuota::Lease::Lease(MemoryQuota& quota, std::string tenant, std::string job)
    : quota_(quota), tenant_(std::move(tenant)), job_(std::move(job)) {}

MemoryQuota::Lease::~Lease() {
  release(bytes_);
}

Status MemoryQuota::Lease::take(std::size_t bytes) {
  const std::lock_guard lock(quota_.mutex_);
  const auto text = [](std::size_t amount) { return format_bytes(static_cast<double>(amount)); };
  const auto found = quota_.taken_.find(tenant_);
  const std::size_t taken = found == quota_.taken_.end() ? 0 : found->second;
  const std::size_t most = quota_.tenants_.find(tenant_).quota_bytes;
  if (most > 0 && (taken > most || bytes > most - taken)) {
    return fail(ErrorCode::kRefused, "job '{}' needs {} here; of the quota of tenant '{}', {}, {} are taken", job_,
                text(bytes), tenant_, text(most), text(taken));
  }
  quota_.taken_[tenant_] = taken + bytes;
  bytes_ += bytes;
  return {};
}

void MemoryQuota::Lease::release(std::size_t bytes) {
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

Result<std::shared_ptr<void>> TenantUse::take(const std::string& tenant, const Amounts& amounts) {
  const Tenant& known = tenants_.find(tenant);
  TenantCounts caps = known.caps;
  const std::lock_guard lock(mutex_);
  TenantCounts& taken = taken_[&known];
  for (const auto& [count, amount] : amounts) {
    if (amount <= caps[count] - taken[count]) continue;
    const TenantCap& cap = *std::ranges::find(kTenantCaps, count, &TenantCap::count);
    return fail(ErrorCode::kRefused, "{} have {} {} here and want {} more; {} lets them have {}",
                tenants_.named().empty() ? "clients with this token" : fmt::format("clients of tenant '{}'", tenant),
                taken[count], cap.noun, amount, cap.key, caps[count]);
  }
  for (const auto& [count, amount] : amounts) taken[count] += amount;
  return std::shared_ptr<void>(this, [this, &taken, amounts](void*) {
    const std::lock_guard lock(mutex_);
    for (const auto& [count, amount] : amounts) taken[count] -= amount;
  });
}

}  // namespace motley::ps
