// Where jobs run: servers with devices, each in a rack.
#pragma once

#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::schedule {

struct Server {
  std::string name;
  int devices = 1;
  int rack = 0;
};

struct Machines {
  std::vector<Server> servers;
  int racks = 1;

  int devices() const;  // of all servers
};

// All devices in one place, as schedulers count them that know no servers.
Machines pool(int devices);
// Servers alike, in racks of `servers_a_rack` each (0: all in one), the last of which may be smaller.
Machines uniform(int servers, int devices_each, int servers_a_rack = 0);

// "128" is a pool, "16x8" are 16 servers of 8 devices, "16x8/4" the same in racks of 4 servers. Errors: kInvalidInput.
Result<Machines> parse_machines(const std::string& text);

// Workers of a job on one server.
struct Part {
  int server = 0;
  int workers = 0;
  bool operator==(const Part&) const = default;
};
// By server, ascending; empty: the job does not run.
using Placement = std::vector<Part>;
int workers_of(const Placement& placement);

// Which devices are free.
class Occupancy {
 public:
  explicit Occupancy(const Machines& machines);

  int free() const { return free_; }
  int free_on(int server) const { return servers_[static_cast<std::size_t>(server)]; }
  bool has_room(const Placement& placement) const;
  void take(const Placement& placement);  // may take more than there is, which has_room tells before
  void give_back(const Placement& placement);

 private:
  std::vector<int> servers_;
  int free_ = 0;
};

}  // namespace motley::schedule
