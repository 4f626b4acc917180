#include "motley/scheduling/trace/cluster_machines.h"

#include <algorithm>

namespace motley::scheduling {

Machines machines_of(const cluster::Cluster& cluster) {
  Machines machines;
  for (const cluster::Node& node : cluster.nodes) {
    std::int64_t devices = 0;
    std::string type;
    for (const cluster::NodeDevices& one : node.devices) {
      if (one.count == 0) continue;
      devices += one.count;
      if (!type.empty()) type += '+';
      type += one.type;
    }
    if (devices == 0) continue;
    machines.servers.push_back(
        {.name = node.name, .devices = static_cast<int>(devices), .type = machines.type_named(type)});
  }
  for (const cluster::Link& link : cluster.links) {
    double& slowest = link.from == link.to ? machines.network.inside : machines.network.between;
    slowest = std::min(slowest, link.bytes_per_second);
  }
  return machines;
}

}  // namespace motley::scheduling
