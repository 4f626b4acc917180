#include "motley/scheduling/trace/topology_of_cluster.h"

#include <algorithm>

namespace motley::scheduling {

ClusterTopology make_topology(const cluster::Cluster& cluster) {
  ClusterTopology topology;
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
    topology.nodes.push_back(
        {.name = node.name, .devices = static_cast<int>(devices), .type = topology.type_named(type)});
  }
  for (const cluster::Link& link : cluster.links) {
    double& slowest =
        link.from == link.to ? topology.network.intra_node_bandwidth : topology.network.inter_node_bandwidth;
    slowest = std::min(slowest, link.bytes_per_second);
  }
  return topology;
}

}  // namespace motley::scheduling
