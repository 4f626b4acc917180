#include "motley/scheduling/service/requester.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace motley::scheduling {
namespace {

constexpr double kMinute = 60;
constexpr double kTolerance = 1e-6;  // seconds, of sums of their parts

// Its number where it has no name.
std::string name_of_user(uid_t user) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> text;
  ::getpwuid_r(user, &entry, text.data(), text.size(), &found);
  return found != nullptr ? found->pw_name : fmt::format("{}", user);
}

}  // namespace

Requester find_requester(const net::HttpPeer& peer) {
  if (peer.user) return {name_of_user(*peer.user), *peer.user == ::geteuid() || *peer.user == 0};
  if (!peer.certificate) return {.is_operator = true};
  const std::vector<std::string>& tenants = peer.certificate->tenants;
  return {tenants.empty() ? kDefaultTenant : tenants.front(), peer.certificate->is_server};
}

Status check_owner(const Requester& requester, const JobRecord& record, const std::string& what) {
  if (requester.is_operator || requester.tenant == record.tenant) return {};
  return fail(ErrorCode::kForbidden, "job '{}' is of tenant '{}', and {} not for '{}'; accepted: of its own jobs",
              record.job.name, record.tenant, what, requester.tenant);
}

Status RateLimit::take(const std::string& tenant, double now) {
  const double step = kMinute / per_minute_;
  const std::lock_guard lock(mutex_);
  double& until = taken_until_.try_emplace(tenant, now).first->second;
  until = std::max(until, now);
  if (until + step > now + kMinute + kTolerance) {
    return fail(ErrorCode::kTooMany, "tenant '{}' has asked for {} {} within a minute; {} lets it ask for {}", tenant,
                per_minute_, noun_, flag_, per_minute_);
  }
  until += step;
  return {};
}

}  // namespace motley::scheduling
