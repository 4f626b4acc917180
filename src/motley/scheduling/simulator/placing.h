// Where the workers of a job that has a fixed number of them are put.
#pragma once

#include <optional>

#include "motley/scheduling/simulator/capacity.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

// kAnywhere takes the servers in their order, as many devices of each as are free; kTogether never splits a job that
// fits on one server, and gives a larger one whole idle servers and one for what is left over; kRing puts a job on as
// few servers and racks as there is room on, uplinks included.
enum class Packing { kAnywhere, kTogether, kRing };

// What is free, for one way of packing.
class Room {
 public:
  // All is free. The machines must outlive it.
  Room(const Machines& machines, Packing packing);

  int free() const { return occupancy().free(); }
  bool has_room(const Job& job, const Placement& placement) const;
  // Where so many workers of a job go; empty where they do not fit now. kTogether takes the first server with
  // room, and for larger jobs the first idle ones, each filled (servers of unlike sizes: the largest first). A job that
  // is not as fast on all devices has those of the type on which it is fastest of those that have room.
  Placement place(const Job& job, int workers) const;
  // On devices of this type.
  Placement place(const Job& job, int workers, int type) const;
  void take(const Job& job, const Placement& placement);  // which must have room

 private:
  const Occupancy& occupancy() const { return capacity_ ? capacity_->devices() : *occupancy_; }

  const Machines* machines_;
  Packing packing_;
  std::optional<Occupancy> occupancy_;  // where uplinks do not matter
  std::optional<Capacity> capacity_;    // where they do
};

// The types of devices of which a job may have some; kAnyType alone where it may have any.
std::vector<int> types_of(const Job& job);
// The most devices that a job can have at a time, all of them free.
int most_devices(const Machines& machines, const Job& job);

}  // namespace motley::scheduling
