// What of a cluster is free, devices and bandwidth of uplinks, and where there is room for a ring.
//
// Racks are a tree: between two servers there is one path. A ring goes through each server and each rack once, so that
// it needs its bandwidth on a server's uplink exactly where it has some, but not all, of its workers on that server,
// and on a rack's uplink likewise.
#pragma once

#include <vector>

#include "motley/scheduling/trace/machines.h"

namespace motley::scheduling {

class Capacity {
 public:
  // All is free. The machines must outlive it.
  explicit Capacity(const Machines& machines);

  const Occupancy& devices() const { return occupancy_; }
  // What is free, as a cluster of its own.
  Machines rest() const;
  // `reserve`: bytes a second of each uplink that the ring goes over.
  bool has_room(const Placement& placement, double reserve) const;
  void take(const Placement& placement, double reserve);  // which must have room
  void give_back(const Placement& placement, double reserve);

  // So many workers, on devices of this type, with the shortest reach that there is room for; on as few servers as can
  // be, where least is left over. Empty where there is none.
  Placement find(int workers, double reserve, int type = kAnyType) const;

 private:
  struct Rack {
    std::vector<int> servers;
    std::vector<int> free;  // devices by type
    int free_of(int type) const;
  };

  int free_on(int server) const { return occupancy_.free_on(server); }
  int rack_of(int server) const { return machines_->servers[static_cast<std::size_t>(server)].rack; }
  bool has_server_uplink(int server, double reserve) const;
  bool has_rack_uplink(int rack, double reserve) const;
  std::vector<int> crossed_racks(const Placement& placement) const;
  void leave_lists(const Placement& placement);
  void count(const Placement& placement, double reserve, int sign);
  Placement on_one_server(int workers, int type) const;
  Placement in_one_rack(int workers, double reserve, int type) const;
  Placement over_racks(int workers, double reserve, int type) const;
  std::vector<int> usable(const Rack& rack, double reserve, int type) const;
  Placement fill(std::vector<int> servers, int workers) const;

  const Machines* machines_;
  Occupancy occupancy_;
  std::vector<double> server_uplinks_, rack_uplinks_;
  std::vector<Rack> racks_;
  std::vector<std::vector<int>> by_free_;  // servers with so many free devices
};

}  // namespace motley::scheduling
