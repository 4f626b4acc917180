// Where the workers of a job that has a fixed number of them are put.
#pragma once

#include <optional>

#include "motley/scheduling/simulator/capacity.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

// kAny takes the nodes in their order, as many devices of each as are free; kConsolidated never splits a job that
// fits on one node, and gives a larger one whole idle nodes and one for what is left over; kCompact puts a job on as
// few nodes and racks as there is room on, uplinks included.
enum class PlacementStrategy { kAny, kConsolidated, kCompact };

// What is free, for one way of packing.
class Placer {
 public:
  // All is free. The machines must outlive it.
  Placer(const ClusterTopology& topology, PlacementStrategy strategy);

  int free() const { return occupancy().free(); }
  bool fits(const Job& job, const Placement& placement) const;
  // Where so many workers of a job go; empty where they do not fit now. kConsolidated takes the first node with
  // room, and for larger jobs the first idle ones, each filled (nodes of different sizes: the largest first). A job
  // that is not as fast on all devices has those of the type on which it is fastest of those that have room.
  Placement place(const Job& job, int workers) const;
  // On devices of this type.
  Placement place(const Job& job, int workers, int type) const;
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
// The most devices that a job can have at a time, all of them free.
int max_devices(const ClusterTopology& topology, const Job& job);

}  // namespace motley::scheduling
