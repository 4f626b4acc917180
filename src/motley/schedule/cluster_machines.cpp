#include "motley/schedule/cluster_machines.h"

#include <algorithm>

namespace motley::schedule {

Machines machines_of(const cluster::Cluster& cluster) {
  Machines machines;
  for (const cluster::Node& node : cluster.nodes) {
    std::int64_t devices = 0;
    for (const cluster::NodeDevices& one : node.devices) devices += one.count;
    if (devices > 0) machines.servers.push_back({node.name, static_cast<int>(devices)});
  }
  for (const cluster::Link& link : cluster.links) {
    double& slowest = link.from == link.to ? machines.network.inside : machines.network.between;
    slowest = std::min(slowest, link.bytes_per_second);
  }
  return machines;
}

}  // namespace motley::schedule
