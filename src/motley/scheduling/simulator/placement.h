// What of a cluster is free, devices, other resources and bandwidth of uplinks, and where there is room for a job's
// workers.
//
// Racks are a tree: between two nodes there is one path. A ring goes through each node and each rack once, so that
// it needs its bandwidth on a node's uplink exactly where it has some, but not all, of its workers on that node,
// and on a rack's uplink likewise.
#pragma once

#include <optional>
#include <vector>

#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

// Which devices are free, and how much of other resources. `requests`: of each resource, a worker (Demand).
class Occupancy {
 public:
  explicit Occupancy(const ClusterTopology& topology);

  int free() const { return free_; }
  int free_on(int node) const { return nodes_[index(node)]; }
  // Workers for which there is room.
  int workers_fitting(int node, std::span<const double> requests) const {
    return requests.empty() ? free_on(node) : limit_workers(free_on(node), requests, resources_on(node));
  }
  std::span<const double> resources_on(int node) const {
    return resources_.empty() ? std::span<const double>() : resources_[index(node)];
  }
  bool fits(const Placement& placement, std::span<const double> requests = {}) const;
  // May be more than there is, which fits tells before.
  void take(const Placement& placement, std::span<const double> requests = {}) { add(placement, requests, -1); }
  void release(const Placement& placement, std::span<const double> requests = {}) { add(placement, requests, 1); }
  void add(const Placement& placement, std::span<const double> requests, int times);

 private:
  std::vector<int> nodes_;
  std::vector<std::vector<double>> resources_;  // of each node; empty where the cluster has none
  int free_ = 0;
};

// Devices, other resources and uplinks.
class Capacity {
 public:
  // All is free. The machines must outlive it.
  explicit Capacity(const ClusterTopology& topology);

  const Occupancy& devices() const { return occupancy_; }
  // What is free, as a cluster of its own.
  ClusterTopology rest() const;
  bool fits(const Placement& placement, const Demand& demand) const;
  void take(const Placement& placement, const Demand& demand) { add(placement, demand, -1); }  // which must have room
  void release(const Placement& placement, const Demand& demand) { add(placement, demand, 1); }

  // Free devices of the node and of the rack that have most.
  struct MostFree {
    int on_node = 0;
    int in_rack = 0;
  };
  MostFree find_most_free() const;

  // So many workers, on devices of this type, with the shortest reach that there is room for; on as few nodes as can
  // be, where least is left over. Empty where there is none.
  Placement find(int workers, const Demand& demand, int type = kAnyType) const;

 private:
  struct Rack {
    std::vector<int> nodes;
    std::vector<int> free;  // devices by type
    int count_free(int type) const;
  };

  int free_on(int node) const { return occupancy_.free_on(node); }
  int find_rack(int node) const { return topology_->nodes[index(node)].rack; }
  std::vector<int> crossed_racks(const Placement& placement) const;
  void add(const Placement& placement, const Demand& demand, int times);
  Placement on_one_node(int workers, const Demand& demand, int type) const;
  Placement in_one_rack(int workers, const Demand& demand, int type) const;
  Placement over_racks(int workers, const Demand& demand, int type) const;
  // Nodes with room, and for how many workers.
  std::vector<Part> usable(const Rack& rack, const Demand& demand, int type) const;
  static Placement fill(std::vector<Part> rooms, int workers);

  const ClusterTopology* topology_;
  Occupancy occupancy_;
  std::vector<double> node_uplinks_, rack_uplinks_;
  std::vector<Rack> racks_;
  std::vector<std::vector<int>> by_free_;  // nodes with so many free devices
};

// kAny takes the nodes in their order, as many devices of each as are free; kConsolidated never splits a job that
// fits on one node, and gives a larger one whole idle nodes and one for what is left over; kCompact puts a job on as
// few nodes and racks as there is room on, uplinks included.
enum class PlacementStrategy { kAny, kConsolidated, kCompact };

// What is free, for one way of packing.
class Placer {
 public:
  // All is free. The machines must outlive it.
  Placer(const ClusterTopology& topology, PlacementStrategy strategy);
  // What is free of them now. The capacity need not outlive it.
  Placer(const ClusterTopology& topology, const Capacity& now, PlacementStrategy strategy);

  int free() const { return occupancy().free(); }
  bool fits(const Job& job, const Placement& placement) const;
  // Where so many workers of a job go; empty where they do not fit now. kConsolidated takes the first node with
  // room, and for larger jobs the first idle ones, each filled (nodes of different sizes: the largest first). A job
  // that is not as fast on all devices has those of this type, or of the type on which it is fastest of those that have
  // room.
  Placement place(const Job& job, int workers, int type = kAnyType) const;
  void take(const Job& job, const Placement& placement);  // which must have room

 private:
  const Occupancy& occupancy() const { return capacity_ ? capacity_->devices() : *occupancy_; }

  const ClusterTopology* topology_;
  PlacementStrategy strategy_;
  std::optional<Occupancy> occupancy_;  // where uplinks do not matter
  std::optional<Capacity> capacity_;    // where they do
};

// The types of devices of which a job may have some; kAnyType alone where it may have any.
std::vector<int> list_types(const Job& job);
// The most workers that a job can have at a time, with nobody else there.
int max_devices(const ClusterTopology& topology, const Job& job);

}  // namespace motley::scheduling
