#include "motley/schedule/placing.h"

#include <algorithm>
#include <numeric>

namespace motley::schedule {
namespace {

Placement place_anywhere(const Machines& machines, const Occupancy& occupancy, int workers) {
  Placement placement;
  for (int server = 0; server < static_cast<int>(machines.servers.size()) && workers > 0; ++server) {
    const int taken = std::min(workers, occupancy.free_on(server));
    if (taken <= 0) continue;
    placement.push_back({server, taken});
    workers -= taken;
  }
  return placement;
}

Placement place_together(const Machines& machines, const Occupancy& occupancy, int workers) {
  const auto count = static_cast<int>(machines.servers.size());
  const auto size_of = [&](int server) { return machines.servers[static_cast<std::size_t>(server)].devices; };
  Placement placement;
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (workers > std::ranges::max(machines.servers, {}, &Server::devices).devices) {
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
  if (workers > free()) return {};
  switch (packing_) {
    case Packing::kAnywhere:
      return place_anywhere(*machines_, *occupancy_, workers);
    case Packing::kTogether:
      return place_together(*machines_, *occupancy_, workers);
    case Packing::kRing:
      break;
  }
  return capacity_->find(workers, job.reserve());
}

void Room::take(const Job& job, const Placement& placement) {
  if (capacity_) {
    capacity_->take(placement, job.reserve());
  } else {
    occupancy_->take(placement);
  }
}

}  // namespace motley::schedule
