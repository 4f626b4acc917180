// Where jobs run: servers with devices, each in a rack. All devices of a server are of one type.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

struct Server {
  std::string name;
  int devices = 1;
  int rack = 0;
  double uplink = std::numeric_limits<double>::infinity();  // bytes a second to its rack's switch, each way
  int type = 0;                                             // of its devices: a place in Machines::types
};

inline constexpr int kAnyType = -1;

// How fast gradients travel, where nothing is reserved for them. Rings that leave their servers slow each other down
// where they meet: the model of SJF-BCO (Yu, Ji, Rajan, Liu, MobiHoc 2022). Without limits here, speed depends on no
// placement.
struct Network {
  double inside = std::numeric_limits<double>::infinity();   // bytes a second between devices of one server
  double between = std::numeric_limits<double>::infinity();  // bytes a second between servers, for a ring on its own
  double meeting = 1;  // share of the time in which rings that meet use the same link (xi1)
  double loss = 0;     // of bandwidth for each other ring beside what it takes (alpha): f(k) = k + alpha (k - 1)
  double seconds_a_server = 0;  // of each iteration, for each server that the ring goes over (xi2)
};

struct Machines {
  std::vector<Server> servers;
  int racks = 1;
  std::vector<double> rack_uplinks = {};  // bytes a second to the other racks, each way; empty: no limit
  Network network = {};
  std::vector<std::string> types = {};  // names of types of devices; empty: all are alike

  int devices(int type = kAnyType) const;         // of all servers of this type
  int largest_server(int type = kAnyType) const;  // its devices
  int type_count() const { return types.empty() ? 1 : static_cast<int>(types.size()); }
  std::string type_name(const Server& server) const;  // empty where all are alike
  int type_named(const std::string& name);            // its place among the types, to which it is added where it is new
  bool is_of(int server, int type) const {
    return type == kAnyType || servers[static_cast<std::size_t>(server)].type == type;
  }
  double rack_uplink(int rack) const;
};

// All devices in one place, as schedulers count them that know no servers.
Machines pool(int devices);
// Servers alike, in racks of `servers_a_rack` each (0: all in one), the last of which may be smaller.
Machines uniform(int servers, int devices_each, int servers_a_rack = 0);

// "128" is a pool, "16x8" are 16 servers of 8 devices, "16x8/4" the same in racks of 4 servers; "8x4:v100,16x4:k80" are
// servers with unlike devices. Errors: kInvalidInput.
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

// How far a job's ring goes.
enum class Reach : std::uint8_t { kServer, kRack, kCluster };
Reach reach_of(const Machines& machines, const Placement& placement);
// The type of all its devices; kAnyType where they are of several.
int type_of(const Machines& machines, const Placement& placement);
// Whether all its devices are of this type; always, where it is kAnyType.
bool is_of(const Machines& machines, const Placement& placement, int type);

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

}  // namespace motley::scheduling
