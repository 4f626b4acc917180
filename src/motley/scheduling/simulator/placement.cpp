#include "motley/scheduling/simulator/placement.h"

#include <algorithm>

namespace motley::scheduling {
namespace {

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
  const auto count_devices = [&](int node) { return topology.nodes[static_cast<std::size_t>(node)].devices; };
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

Placer::Placer(const ClusterTopology& topology, PlacementStrategy strategy)
    : topology_(&topology), strategy_(strategy) {
  if (strategy == PlacementStrategy::kCompact) {
    capacity_.emplace(topology);
  } else {
    occupancy_.emplace(topology);
  }
}

bool Placer::fits(const Job& job, const Placement& placement) const {
  return capacity_ ? capacity_->fits(placement, job.reserve()) : occupancy_->fits(placement);
}

Placement Placer::place(const Job& job, int workers) const {
  if (job.type_speeds.empty()) return place(job, workers, kAnyType);
  std::vector<int> types = list_types(job);
  std::ranges::stable_sort(types, std::greater(), [&](int type) { return job.speed_on(type); });
  for (const int type : types) {
    Placement placement = place(job, workers, type);
    if (!placement.empty()) return placement;
  }
  return {};
}

Placement Placer::place(const Job& job, int workers, int type) const {
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
