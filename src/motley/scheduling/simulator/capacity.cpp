#include "motley/scheduling/simulator/capacity.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace motley::scheduling {
namespace {

constexpr double kSlack = 1e-9;  // relative: bandwidth that rounding may feign to be missing

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace

Capacity::Capacity(const Machines& machines) : machines_(&machines), occupancy_(machines) {
  racks_.resize(index(machines.racks), {{}, std::vector<int>(index(machines.type_count()))});
  for (int rack = 0; rack < machines.racks; ++rack) rack_uplinks_.push_back(machines.rack_uplink(rack));
  for (int server = 0; server < static_cast<int>(machines.servers.size()); ++server) {
    server_uplinks_.push_back(machines.servers[index(server)].uplink);
    Rack& rack = racks_[index(rack_of(server))];
    rack.servers.push_back(server);
    rack.free[index(machines.servers[index(server)].type)] += free_on(server);
    by_free_.resize(std::max(by_free_.size(), index(free_on(server)) + 1));
    by_free_[index(free_on(server))].push_back(server);
  }
}

int Capacity::Rack::free_of(int type) const {
  return type == kAnyType ? std::accumulate(free.begin(), free.end(), 0) : free[index(type)];
}

Machines Capacity::rest() const {
  Machines machines = *machines_;
  for (int server = 0; server < static_cast<int>(machines.servers.size()); ++server) {
    machines.servers[index(server)].devices = free_on(server);
    machines.servers[index(server)].uplink = server_uplinks_[index(server)];
  }
  machines.rack_uplinks = rack_uplinks_;
  return machines;
}

bool Capacity::has_server_uplink(int server, double reserve) const {
  return reserve * (1 - kSlack) <= server_uplinks_[index(server)];
}

bool Capacity::has_rack_uplink(int rack, double reserve) const {
  return reserve * (1 - kSlack) <= rack_uplinks_[index(rack)];
}

bool Capacity::has_room(const Placement& placement, double reserve) const {
  const int workers = workers_of(placement);
  return occupancy_.has_room(placement) &&
         std::ranges::all_of(
             placement,
             [&](const Part& part) { return part.workers == workers || has_server_uplink(part.server, reserve); }) &&
         std::ranges::all_of(crossed_racks(placement), [&](int rack) { return has_rack_uplink(rack, reserve); });
}

void Capacity::take(const Placement& placement, double reserve) {
  leave_lists(placement);
  occupancy_.take(placement);
  count(placement, reserve, 1);
}

void Capacity::give_back(const Placement& placement, double reserve) {
  leave_lists(placement);
  occupancy_.give_back(placement);
  count(placement, reserve, -1);
}

std::vector<int> Capacity::crossed_racks(const Placement& placement) const {
  if (reach_of(*machines_, placement) != Reach::kCluster) return {};
  std::vector<int> racks;
  for (const Part& part : placement) racks.push_back(rack_of(part.server));
  std::ranges::sort(racks);
  racks.erase(std::unique(racks.begin(), racks.end()), racks.end());
  return racks;
}

void Capacity::leave_lists(const Placement& placement) {
  for (const Part& part : placement) std::erase(by_free_[index(free_on(part.server))], part.server);
}

// Of servers whose devices are taken (1) or given back (-1) and which are in no list: the lists, racks and uplinks.
void Capacity::count(const Placement& placement, double reserve, int sign) {
  const int workers = workers_of(placement);
  for (const Part& part : placement) {
    by_free_[index(free_on(part.server))].push_back(part.server);
    racks_[index(rack_of(part.server))].free[index(machines_->servers[index(part.server)].type)] -= sign * part.workers;
    if (part.workers < workers) server_uplinks_[index(part.server)] -= sign * reserve;
  }
  for (const int rack : crossed_racks(placement)) rack_uplinks_[index(rack)] -= sign * reserve;
}

Placement Capacity::find(int workers, double reserve, int type) const {
  Placement found = on_one_server(workers, type);
  if (found.empty()) found = in_one_rack(workers, reserve, type);
  if (found.empty()) found = over_racks(workers, reserve, type);
  return found;
}

// The server where least is left over.
Placement Capacity::on_one_server(int workers, int type) const {
  for (std::size_t free = index(workers); free < by_free_.size(); ++free) {
    int first = std::numeric_limits<int>::max();
    for (const int server : by_free_[free]) {
      if (machines_->is_of(server, type)) first = std::min(first, server);
    }
    if (first < std::numeric_limits<int>::max()) return {{first, workers}};
  }
  return {};
}

// Fills servers, the emptiest first, and takes the rest from the one where least is left over: as few servers as can
// be. `servers` are those whose uplinks have room.
Placement Capacity::fill(std::vector<int> servers, int workers) const {
  std::ranges::stable_sort(servers, std::greater(), [&](int server) { return free_on(server); });
  Placement placement;
  for (auto server = servers.begin(); workers > 0 && server != servers.end() && free_on(*server) > 0; ++server) {
    if (free_on(*server) >= workers) {
      const auto end = std::find_if(server, servers.end(), [&](int other) { return free_on(other) < workers; });
      placement.push_back({*(end - 1), workers});
      workers = 0;
      break;
    }
    placement.push_back({*server, free_on(*server)});
    workers -= free_on(*server);
  }
  if (workers > 0) return {};
  std::ranges::sort(placement, {}, &Part::server);
  return placement;
}

std::vector<int> Capacity::usable(const Rack& rack, double reserve, int type) const {
  std::vector<int> servers;
  for (const int server : rack.servers) {
    if (free_on(server) > 0 && machines_->is_of(server, type) && has_server_uplink(server, reserve))
      servers.push_back(server);
  }
  return servers;
}

// The rack that has room with the fewest devices left over.
Placement Capacity::in_one_rack(int workers, double reserve, int type) const {
  std::vector<int> order;
  for (int rack = 0; rack < machines_->racks; ++rack) {
    if (racks_[index(rack)].free_of(type) >= workers) order.push_back(rack);
  }
  std::ranges::stable_sort(order, {}, [&](int rack) { return racks_[index(rack)].free_of(type); });
  for (const int rack : order) {
    Placement placement = fill(usable(racks_[index(rack)], reserve, type), workers);
    if (!placement.empty()) return placement;
  }
  return {};
}

// Racks with most free devices first, so that the ring goes over few.
Placement Capacity::over_racks(int workers, double reserve, int type) const {
  std::vector<int> order;
  for (int rack = 0; rack < machines_->racks; ++rack) {
    if (has_rack_uplink(rack, reserve)) order.push_back(rack);
  }
  std::ranges::stable_sort(order, std::greater(), [&](int rack) { return racks_[index(rack)].free_of(type); });
  Placement all;
  for (const int rack : order) {
    const std::vector<int> servers = usable(racks_[index(rack)], reserve, type);
    const int there = std::transform_reduce(servers.begin(), servers.end(), 0, std::plus<>(),
                                            [&](int server) { return free_on(server); });
    const int taken = std::min(workers, there);
    if (taken == 0) continue;
    for (const Part& part : fill(servers, taken)) all.push_back(part);
    workers -= taken;
    if (workers == 0) break;
  }
  if (workers > 0) return {};
  std::ranges::sort(all, {}, &Part::server);
  return all;
}

}  // namespace motley::scheduling
