#include "motley/app/schedule_topology.h"

#include <algorithm>

namespace motley::app {

scheduling::ClusterTopology make_topology(const cluster::Cluster& cluster) {
  scheduling::ClusterTopology topology;
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

Result<scheduling::ClusterTopology> make_topology(const ClusterRequest& request,
                                                  scheduling::ClusterTopology otherwise) {
  constexpr double kGigabit = 1e9 / 8;
  scheduling::ClusterTopology topology = std::move(otherwise);
  if (request.topology.ends_with(".yaml") || request.topology.ends_with(".yml")) {
    MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(request.topology));
    topology = make_topology(cluster);
    if (topology.devices() == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: has no nodes with devices; accepted: one or more", request.topology);
    }
  } else if (!request.topology.empty()) {
    MOTLEY_ASSIGN(topology, scheduling::parse_topology(request.topology));
  }
  if (request.intra_node_bandwidth > 0) topology.network.intra_node_bandwidth = request.intra_node_bandwidth * kGigabit;
  if (request.inter_node_bandwidth > 0) topology.network.inter_node_bandwidth = request.inter_node_bandwidth * kGigabit;
  return topology;
}

}  // namespace motley::app
