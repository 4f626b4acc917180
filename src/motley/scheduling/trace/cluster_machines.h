// The cluster of a cluster.yaml as the scheduler sees it.
#pragma once

#include "motley/cluster/cluster.h"
#include "motley/scheduling/trace/machines.h"

namespace motley::scheduling {

// A server for each node that has devices, all in one rack, of the type that its devices have; where a node has
// several, they are one of its own, such as "v100+cpu". The network is as slow as the slowest link inside a node and
// the slowest between two; without such links it has no limit there.
Machines machines_of(const cluster::Cluster& cluster);

}  // namespace motley::scheduling
