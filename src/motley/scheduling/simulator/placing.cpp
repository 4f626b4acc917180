#include "motley/scheduling/simulator/placing.h"

#include <algorithm>

namespace motley::scheduling {
namespace {

Placement place_anywhere(const Machines& machines, const Occupancy& occupancy, int workers, int type) {
  Placement placement;
  for (int server = 0; server < static_cast<int>(machines.servers.size()) && workers > 0; ++server) {
    const int taken = machines.is_of(server, type) ? std::min(workers, occupancy.free_on(server)) : 0;
    if (taken <= 0) continue;
    placement.push_back({server, taken});
    workers -= taken;
  }
  return workers > 0 ? Placement() : placement;
}

Placement place_together(const Machines& machines, const Occupancy& occupancy, int workers, int type) {
  const auto size_of = [&](int server) { return machines.servers[static_cast<std::size_t>(server)].devices; };
  Placement placement;
  std::vector<int> order;
  for (int server = 0; server < static_cast<int>(machines.servers.size()); ++server) {
    if (machines.is_of(server, type)) order.push_back(server);
  }
  if (workers > machines.largest_server(type)) {
    std::ranges::stable_sort(order, std::greater(), size_of);
    for (const int server : order) {
      const int size = size_of(server);
      if (size > workers || occupancy.free_on(server) < size) continue;
      placement.push_back({server, size});
      workers -= size;
    }
  }
  if (workers > 0) {
    const auto has_room = [&](int server) {
      return occupancy.free_on(server) >= workers &&
             std::ranges::find(placement, server, &Part::server) == placement.end();
    };
    std::ranges::sort(order);
    const auto found = std::ranges::find_if(order, has_room);
    if (found == order.end()) return {};
    placement.push_back({*found, workers});
  }
  std::ranges::sort(placement, {}, &Part::server);
  return placement;
}

}  // namespace

Room::Room(const Machines& machines, Packing packing) : machines_(&machines), packing_(packing) {
  if (packing == Packing::kRing) {
    capacity_.emplace(machines);
  } else {
    occupancy_.emplace(machines);
  }
}

bool Room::has_room(const Job& job, const Placement& placement) const {
  return capacity_ ? capacity_->has_room(placement, job.reserve()) : occupancy_->has_room(placement);
}

Placement Room::place(const Job& job, int workers) const {
  if (job.type_speeds.empty()) return place(job, workers, kAnyType);
  std::vector<int> types = types_of(job);
  std::ranges::stable_sort(types, std::greater(), [&](int type) { return job.speed_on(type); });
  for (const int type : types) {
    Placement placement = place(job, workers, type);
    if (!placement.empty()) return placement;
  }
  return {};
}

Placement Room::place(const Job& job, int workers, int type) const {
  if (workers > free()) return {};
  switch (packing_) {
    case Packing::kAnywhere:
      return place_anywhere(*machines_, *occupancy_, workers, type);
    case Packing::kTogether:
      return place_together(*machines_, *occupancy_, workers, type);
    case Packing::kRing:
      break;
  }
  return capacity_->find(workers, job.reserve(), type);
}

void Room::take(const Job& job, const Placement& placement) {
  if (capacity_) {
    capacity_->take(placement, job.reserve());
  } else {
    occupancy_->take(placement);
  }
}

std::vector<int> types_of(const Job& job) {
  if (job.type_speeds.empty()) return {kAnyType};
  std::vector<int> types;
  for (int type = 0; type < static_cast<int>(job.type_speeds.size()); ++type) {
    if (job.speed_on(type) > 0) types.push_back(type);
  }
  return types;
}

int most_devices(const Machines& machines, const Job& job) {
  int most = 0;
  for (const int type : types_of(job)) most = std::max(most, machines.devices(type));
  return most;
}

}  // namespace motley::scheduling
