#include "motley/app/schedule_topology.h"

#include "motley/scheduling/trace/topology_of_cluster.h"

namespace motley::app {

Result<scheduling::ClusterTopology> make_topology(const ClusterRequest& request,
                                                  scheduling::ClusterTopology otherwise) {
  constexpr double kGigabit = 1e9 / 8;
  scheduling::ClusterTopology topology = std::move(otherwise);
  if (request.topology.ends_with(".yaml") || request.topology.ends_with(".yml")) {
    MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(request.topology));
    topology = scheduling::make_topology(cluster);
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
