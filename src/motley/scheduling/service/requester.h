// Who asks a service for something, and how much each tenant may ask for. A tenant is whose jobs are counted together
// and changed by nobody else but operators: the first one that the client's certificate names, at a unix socket the
// client's user, and elsewhere kDefaultTenant, which all are that show the token.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "motley/base/result.h"
#include "motley/net/http_server.h"
#include "motley/scheduling/service/job_record.h"

namespace motley::scheduling {

struct Requester {
  std::string tenant = kDefaultTenant;
  // May change jobs of all tenants, and nodes: the service's own user and root at a unix socket, a certificate that
  // speaks for a server, and whoever shows the token where clients are not told apart.
  bool is_operator = false;
};
// Asks for a user's name, which may take long: not for who holds a lock.
Requester find_requester(const net::HttpPeer& peer);

// kForbidden where the job is another tenant's and the requester no operator; `what` is not theirs.
Status check_owner(const Requester& requester, const JobRecord& record, const std::string& what);

// Of one tenant in a minute.
struct RequestLimits {
  int changes = 6000;
  int forecasts = 600;
};

// So many requests of each tenant within a minute: all of them at once, or one after another. May be used from any
// thread.
class RateLimit {
 public:
  // `flag` says how many, and `noun` what is counted.
  RateLimit(int per_minute, std::string flag, std::string noun)
      : per_minute_(per_minute), flag_(std::move(flag)), noun_(std::move(noun)) {}

  // Counts one. kTooMany, and nothing counted, where there were as many; `now` in seconds that only grow.
  Status take(const std::string& tenant, double now);

 private:
  const int per_minute_;
  const std::string flag_, noun_;
  std::mutex mutex_;
  std::map<std::string, double> taken_until_;  // by tenant: when all it has asked for would be used up, one by one
};

}  // namespace motley::scheduling
