#include "motley/scheduling/simulator/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>

namespace motley::scheduling {
namespace {

constexpr double kSlack = 1e-9;  // relative: bandwidth that rounding may feign to be missing

// Racks by a number, the least first, and then by their place; mostly only the first few are looked at.
using RackQueue = std::priority_queue<std::pair<int, int>, std::vector<std::pair<int, int>>, std::greater<>>;

// On the uplink of a node or a rack.
bool has_room(const std::vector<double>& uplinks, int number, double reserve) {
  return reserve * (1 - kSlack) <= uplinks[index(number)];
}

Placement place_anywhere(const ClusterTopology& topology, const Occupancy& occupancy, int workers, int type,
                         std::span<const double> requests) {
  Placement placement;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()) && workers > 0; ++node) {
    const int taken =
        topology.is_of_type(node, type) ? std::min(workers, occupancy.workers_fitting(node, requests)) : 0;
    if (taken <= 0) continue;
    placement.push_back({node, taken});
    workers -= taken;
  }
  return workers > 0 ? Placement() : placement;
}

Placement place_together(const ClusterTopology& topology, const Occupancy& occupancy, int workers, int type,
                         std::span<const double> requests) {
  const auto count_workers_on = [&](int node) { return topology.workers_on(node, requests); };
  Placement placement;
  std::vector<int> order;
  int largest = 0;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()); ++node) {
    if (!topology.is_of_type(node, type)) continue;
    order.push_back(node);
    largest = std::max(largest, count_workers_on(node));
  }
  if (workers > largest) {
    std::ranges::stable_sort(order, std::greater(), count_workers_on);
    for (const int node : order) {
      const int size = count_workers_on(node);
      if (size == 0 || size > workers || occupancy.workers_fitting(node, requests) < size) continue;
      placement.push_back({node, size});
      workers -= size;
    }
  }
  if (workers > 0) {
    const auto fits = [&](int node) {
      return occupancy.workers_fitting(node, requests) >= workers &&
             std::ranges::find(placement, node, &Part::node) == placement.end();
    };
    std::ranges::sort(order);
    const auto found = std::ranges::find_if(order, fits);
    if (found == order.end()) return {};
    placement.push_back({*found, workers});
  }
  std::ranges::sort(placement, {}, &Part::node);
  return placement;
}

}  // namespace

Occupancy::Occupancy(const ClusterTopology& topology) : free_(topology.devices()) {
  nodes_.reserve(topology.nodes.size());
  for (const Node& node : topology.nodes) {
    nodes_.push_back(node.devices);
    if (!topology.resources.empty()) resources_.push_back(node.resources);
  }
}

bool Occupancy::fits(const Placement& placement, std::span<const double> requests) const {
  return std::ranges::all_of(placement,
                             [&](const Part& part) { return part.workers <= workers_fitting(part.node, requests); });
}

void Occupancy::add(const Placement& placement, std::span<const double> requests, int times) {
  for (const Part& part : placement) {
    nodes_[index(part.node)] += times * part.workers;
    free_ += times * part.workers;
    if (resources_.empty()) continue;
    std::vector<double>& left = resources_[index(part.node)];
    for (std::size_t i = 0; i < std::min(left.size(), requests.size()); ++i) {
      left[i] += times * part.workers * requests[i];
    }
  }
}

Capacity::Capacity(const ClusterTopology& topology) : topology_(&topology), occupancy_(topology) {
  racks_.resize(index(topology.racks), {{}, std::vector<int>(index(topology.type_count()))});
  for (int rack = 0; rack < topology.racks; ++rack) rack_uplinks_.push_back(topology.rack_uplink(rack));
  for (int node = 0; node < static_cast<int>(topology.nodes.size()); ++node) {
    node_uplinks_.push_back(topology.nodes[index(node)].uplink);
    Rack& rack = racks_[index(find_rack(node))];
    rack.nodes.push_back(node);
    rack.free[index(topology.nodes[index(node)].type)] += free_on(node);
    by_free_.resize(std::max(by_free_.size(), index(free_on(node)) + 1));
    by_free_[index(free_on(node))].push_back(node);
  }
}

int Capacity::Rack::count_free(int type) const {
  return type == kAnyType ? std::accumulate(free.begin(), free.end(), 0) : free[index(type)];
}

ClusterTopology Capacity::rest() const {
  ClusterTopology topology = *topology_;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()); ++node) {
    topology.nodes[index(node)].devices = free_on(node);
    topology.nodes[index(node)].uplink = node_uplinks_[index(node)];
    const std::span<const double> left = occupancy_.resources_on(node);
    topology.nodes[index(node)].resources.assign(left.begin(), left.end());
  }
  topology.rack_uplinks = rack_uplinks_;
  return topology;
}

bool Capacity::fits(const Placement& placement, const Demand& demand) const {
  const auto uplink_fits = [&](const Part& part) { return has_room(node_uplinks_, part.node, demand.reserve); };
  const auto rack_fits = [&](int rack) { return has_room(rack_uplinks_, rack, demand.reserve); };
  return occupancy_.fits(placement, demand.requests) &&
         (placement.size() <= 1 || std::ranges::all_of(placement, uplink_fits)) &&
         std::ranges::all_of(crossed_racks(placement), rack_fits);
}

std::vector<int> Capacity::crossed_racks(const Placement& placement) const {
  if (find_locality(*topology_, placement) != Locality::kCluster) return {};
  std::vector<int> racks;
  for (const Part& part : placement) racks.push_back(find_rack(part.node));
  std::ranges::sort(racks);
  racks.erase(std::unique(racks.begin(), racks.end()), racks.end());
  return racks;
}

// What the placement takes is given back (1) or taken (-1).
void Capacity::add(const Placement& placement, const Demand& demand, int times) {
  for (const Part& part : placement) std::erase(by_free_[index(free_on(part.node))], part.node);
  occupancy_.add(placement, demand.requests, times);
  for (const Part& part : placement) {
    by_free_[index(free_on(part.node))].push_back(part.node);
    racks_[index(find_rack(part.node))].free[index(topology_->nodes[index(part.node)].type)] += times * part.workers;
    if (placement.size() > 1) node_uplinks_[index(part.node)] += times * demand.reserve;
  }
  for (const int rack : crossed_racks(placement)) rack_uplinks_[index(rack)] += times * demand.reserve;
}

Capacity::MostFree Capacity::find_most_free() const {
  MostFree most;
  for (std::size_t free = by_free_.size(); free-- > 0 && most.on_node == 0;) {
    if (!by_free_[free].empty()) most.on_node = static_cast<int>(free);
  }
  for (const Rack& rack : racks_) most.in_rack = std::max(most.in_rack, rack.count_free(kAnyType));
  return most;
}

Placement Capacity::find(int workers, const Demand& demand, int type) const {
  if (workers > occupancy_.free()) return {};
  Placement found = on_one_node(workers, demand, type);
  if (found.empty()) found = in_one_rack(workers, demand, type);
  if (found.empty()) found = over_racks(workers, demand, type);
  return found;
}

// The node where fewest devices are left over.
Placement Capacity::on_one_node(int workers, const Demand& demand, int type) const {
  for (std::size_t free = index(workers); free < by_free_.size(); ++free) {
    int first = std::numeric_limits<int>::max();
    for (const int node : by_free_[free]) {
      if (node < first && topology_->is_of_type(node, type) &&
          occupancy_.workers_fitting(node, demand.requests) >= workers) {
        first = node;
      }
    }
    if (first < std::numeric_limits<int>::max()) return {{first, workers}};
  }
  return {};
}

// Fills nodes, the emptiest first, and takes the rest from the one where least is left over: as few nodes as can
// be. `rooms` are of those whose uplinks have room.
Placement Capacity::fill(std::vector<Part> rooms, int workers) {
  std::ranges::sort(rooms, {}, [](const Part& room) { return std::pair(-room.workers, room.node); });
  Placement placement;
  for (auto room = rooms.begin(); workers > 0 && room != rooms.end(); ++room) {
    if (room->workers >= workers) {
      const auto end = std::find_if(room, rooms.end(), [&](const Part& other) { return other.workers < workers; });
      placement.push_back({(end - 1)->node, workers});
      workers = 0;
      break;
    }
    placement.push_back({room->node, room->workers});
    workers -= room->workers;
  }
  if (workers > 0) return {};
  std::ranges::sort(placement, {}, &Part::node);
  return placement;
}

std::vector<Part> Capacity::usable(const Rack& rack, const Demand& demand, int type) const {
  std::vector<Part> rooms;
  for (const int node : rack.nodes) {
    if (free_on(node) == 0 || !topology_->is_of_type(node, type) || !has_room(node_uplinks_, node, demand.reserve)) {
      continue;
    }
    if (const int workers = occupancy_.workers_fitting(node, demand.requests); workers > 0)
      rooms.push_back({node, workers});
  }
  return rooms;
}

// The rack that has room with the fewest devices left over.
Placement Capacity::in_one_rack(int workers, const Demand& demand, int type) const {
  RackQueue racks;
  for (int rack = 0; rack < topology_->racks; ++rack) {
    const int free = racks_[index(rack)].count_free(type);
    if (free >= workers) racks.emplace(free, rack);
  }
  for (; !racks.empty(); racks.pop()) {
    Placement placement = fill(usable(racks_[index(racks.top().second)], demand, type), workers);
    if (!placement.empty()) return placement;
  }
  return {};
}

// Racks with most free devices first, so that the ring goes over few.
Placement Capacity::over_racks(int workers, const Demand& demand, int type) const {
  RackQueue racks;
  for (int rack = 0; rack < topology_->racks; ++rack) {
    if (has_room(rack_uplinks_, rack, demand.reserve)) racks.emplace(-racks_[index(rack)].count_free(type), rack);
  }
  Placement all;
  for (; !racks.empty(); racks.pop()) {
    std::vector<Part> rooms = usable(racks_[index(racks.top().second)], demand, type);
    const int there = std::transform_reduce(rooms.begin(), rooms.end(), 0, std::plus<>(),
                                            [](const Part& room) { return room.workers; });
    const int taken = std::min(workers, there);
    if (taken == 0) continue;
    for (const Part& part : fill(std::move(rooms), taken)) all.push_back(part);
    workers -= taken;
    if (workers == 0) break;
  }
  if (workers > 0) return {};
  std::ranges::sort(all, {}, &Part::node);
  return all;
}

Placer::Placer(const ClusterTopology& topology, PlacementStrategy strategy)
    : topology_(&topology), strategy_(strategy) {
  if (strategy == PlacementStrategy::kCompact) {
    capacity_.emplace(topology);
  } else {
    occupancy_.emplace(topology);
  }
}

Placer::Placer(const ClusterTopology& topology, const Capacity& now, PlacementStrategy strategy)
    : topology_(&topology), strategy_(strategy) {
  if (strategy == PlacementStrategy::kCompact) {
    capacity_ = now;
  } else {
    occupancy_ = now.devices();
  }
}

bool Placer::fits(const Job& job, const Placement& placement) const {
  return capacity_ ? capacity_->fits(placement, job.demand()) : occupancy_->fits(placement, job.requests);
}

Placement Placer::place(const Job& job, int workers, int type) const {
  if (type == kAnyType && !job.type_speeds.empty()) {
    std::vector<int> types = list_types(job);
    std::ranges::stable_sort(types, std::greater(), [&](int one) { return job.speed_on(one); });
    for (const int one : types) {
      Placement placement = place(job, workers, one);
      if (!placement.empty()) return placement;
    }
    return {};
  }
  if (workers > free()) return {};
  switch (strategy_) {
    case PlacementStrategy::kAny:
      return place_anywhere(*topology_, *occupancy_, workers, type, job.requests);
    case PlacementStrategy::kConsolidated:
      return place_together(*topology_, *occupancy_, workers, type, job.requests);
    case PlacementStrategy::kCompact:
      break;
  }
  return capacity_->find(workers, job.demand(), type);
}

void Placer::take(const Job& job, const Placement& placement) {
  if (capacity_) {
    capacity_->take(placement, job.demand());
  } else {
    occupancy_->take(placement, job.requests);
  }
}

std::vector<int> list_types(const Job& job) {
  if (job.type_speeds.empty()) return {kAnyType};
  std::vector<int> types;
  for (int type = 0; type < static_cast<int>(job.type_speeds.size()); ++type) {
    if (job.speed_on(type) > 0) types.push_back(type);
  }
  return types;
}

int max_devices(const ClusterTopology& topology, const Job& job) {
  int most = 0;
  for (const int type : list_types(job)) most = std::max(most, topology.workers(job.requests, type));
  return most;
}

}  // namespace motley::scheduling
