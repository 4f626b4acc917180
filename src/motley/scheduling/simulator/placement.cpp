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

Placement place_anywhere(const ClusterTopology& topology, const Occupancy& occupancy, int workers, int type) {
  Placement placement;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()) && workers > 0; ++node) {
    const int taken = topology.is_of_type(node, type) ? std::min(workers, occupancy.free_on(node)) : 0;
    if (taken <= 0) continue;
    placement.push_back({node, taken});
    workers -= taken;
  }
  return workers > 0 ? Placement() : placement;
}

Placement place_together(const ClusterTopology& topology, const Occupancy& occupancy, int workers, int type) {
  const auto count_devices = [&](int node) { return topology.nodes[index(node)].devices; };
  Placement placement;
  std::vector<int> order;
  for (int node = 0; node < static_cast<int>(topology.nodes.size()); ++node) {
    if (topology.is_of_type(node, type)) order.push_back(node);
  }
  if (workers > topology.largest_node(type)) {
    std::ranges::stable_sort(order, std::greater(), count_devices);
    for (const int node : order) {
      const int size = count_devices(node);
      if (size > workers || occupancy.free_on(node) < size) continue;
      placement.push_back({node, size});
      workers -= size;
    }
  }
  if (workers > 0) {
    const auto fits = [&](int node) {
      return occupancy.free_on(node) >= workers && std::ranges::find(placement, node, &Part::node) == placement.end();
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
  for (const Node& node : topology.nodes) nodes_.push_back(node.devices);
}

bool Occupancy::fits(const Placement& placement) const {
  return std::ranges::all_of(placement, [&](const Part& part) { return part.workers <= free_on(part.node); });
}

void Occupancy::add(const Placement& placement, int times) {
  for (const Part& part : placement) {
    nodes_[index(part.node)] += times * part.workers;
    free_ += times * part.workers;
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
  }
  topology.rack_uplinks = rack_uplinks_;
  return topology;
}

bool Capacity::fits(const Placement& placement, double reserve) const {
  const auto uplink_fits = [&](const Part& part) { return has_room(node_uplinks_, part.node, reserve); };
  const auto rack_fits = [&](int rack) { return has_room(rack_uplinks_, rack, reserve); };
  return occupancy_.fits(placement) && (placement.size() <= 1 || std::ranges::all_of(placement, uplink_fits)) &&
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

// Devices and bandwidth are given back (1) or taken (-1).
void Capacity::add(const Placement& placement, double reserve, int times) {
  for (const Part& part : placement) std::erase(by_free_[index(free_on(part.node))], part.node);
  occupancy_.add(placement, times);
  for (const Part& part : placement) {
    by_free_[index(free_on(part.node))].push_back(part.node);
    racks_[index(find_rack(part.node))].free[index(topology_->nodes[index(part.node)].type)] += times * part.workers;
    if (placement.size() > 1) node_uplinks_[index(part.node)] += times * reserve;
  }
  for (const int rack : crossed_racks(placement)) rack_uplinks_[index(rack)] += times * reserve;
}

Capacity::MostFree Capacity::find_most_free() const {
  MostFree most;
  for (std::size_t free = by_free_.size(); free-- > 0 && most.on_node == 0;) {
    if (!by_free_[free].empty()) most.on_node = static_cast<int>(free);
  }
  for (const Rack& rack : racks_) most.in_rack = std::max(most.in_rack, rack.count_free(kAnyType));
  return most;
}

Placement Capacity::find(int workers, double reserve, int type) const {
  if (workers > occupancy_.free()) return {};
  Placement found = on_one_node(workers, type);
  if (found.empty()) found = in_one_rack(workers, reserve, type);
  if (found.empty()) found = over_racks(workers, reserve, type);
  return found;
}

// The node where least is left over.
Placement Capacity::on_one_node(int workers, int type) const {
  for (std::size_t free = index(workers); free < by_free_.size(); ++free) {
    int first = std::numeric_limits<int>::max();
    for (const int node : by_free_[free]) {
      if (topology_->is_of_type(node, type)) first = std::min(first, node);
    }
    if (first < std::numeric_limits<int>::max()) return {{first, workers}};
  }
  return {};
}

// Fills nodes, the emptiest first, and takes the rest from the one where least is left over: as few nodes as can
// be. `nodes` are those whose uplinks have room.
Placement Capacity::fill(std::vector<int> nodes, int workers) const {
  std::ranges::sort(nodes, {}, [&](int node) { return std::pair(-free_on(node), node); });
  Placement placement;
  for (auto node = nodes.begin(); workers > 0 && node != nodes.end() && free_on(*node) > 0; ++node) {
    if (free_on(*node) >= workers) {
      const auto end = std::find_if(node, nodes.end(), [&](int other) { return free_on(other) < workers; });
      placement.push_back({*(end - 1), workers});
      workers = 0;
      break;
    }
    placement.push_back({*node, free_on(*node)});
    workers -= free_on(*node);
  }
  if (workers > 0) return {};
  std::ranges::sort(placement, {}, &Part::node);
  return placement;
}

std::vector<int> Capacity::usable(const Rack& rack, double reserve, int type) const {
  std::vector<int> nodes;
  for (const int node : rack.nodes) {
    if (free_on(node) > 0 && topology_->is_of_type(node, type) && has_room(node_uplinks_, node, reserve))
      nodes.push_back(node);
  }
  return nodes;
}

// The rack that has room with the fewest devices left over.
Placement Capacity::in_one_rack(int workers, double reserve, int type) const {
  RackQueue racks;
  for (int rack = 0; rack < topology_->racks; ++rack) {
    const int free = racks_[index(rack)].count_free(type);
    if (free >= workers) racks.emplace(free, rack);
  }
  for (; !racks.empty(); racks.pop()) {
    Placement placement = fill(usable(racks_[index(racks.top().second)], reserve, type), workers);
    if (!placement.empty()) return placement;
  }
  return {};
}

// Racks with most free devices first, so that the ring goes over few.
Placement Capacity::over_racks(int workers, double reserve, int type) const {
  RackQueue racks;
  for (int rack = 0; rack < topology_->racks; ++rack) {
    if (has_room(rack_uplinks_, rack, reserve)) racks.emplace(-racks_[index(rack)].count_free(type), rack);
  }
  Placement all;
  for (; !racks.empty(); racks.pop()) {
    std::vector<int> nodes = usable(racks_[index(racks.top().second)], reserve, type);
    const int there =
        std::transform_reduce(nodes.begin(), nodes.end(), 0, std::plus<>(), [&](int node) { return free_on(node); });
    const int taken = std::min(workers, there);
    if (taken == 0) continue;
    for (const Part& part : fill(std::move(nodes), taken)) all.push_back(part);
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
  return capacity_ ? capacity_->fits(placement, job.reserve()) : occupancy_->fits(placement);
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
      return place_anywhere(*topology_, *occupancy_, workers, type);
    case PlacementStrategy::kConsolidated:
      return place_together(*topology_, *occupancy_, workers, type);
    case PlacementStrategy::kCompact:
      break;
  }
  return capacity_->find(workers, job.reserve(), type);
}

void Placer::take(const Job& job, const Placement& placement) {
  if (capacity_) {
    capacity_->take(placement, job.reserve());
  } else {
    occupancy_->take(placement);
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
  for (const int type : list_types(job)) most = std::max(most, topology.devices(type));
  return most;
}

}  // namespace motley::scheduling
