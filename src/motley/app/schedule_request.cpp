#include "motley/app/schedule_request.h"

#include <algorithm>
#include <map>

namespace motley::app {
namespace {

const std::map<std::string, scheduling::Objective> kObjectives = {{"utility", scheduling::Objective::kUtility},
                                                                  {"completion", scheduling::Objective::kCompletion},
                                                                  {"makespan", scheduling::Objective::kMakespan},
                                                                  {"fairness", scheduling::Objective::kFairness}};

}  // namespace

const OptionTable<ClusterRequest>& ClusterRequest::options() {
  using enum OptionKind;
  static const OptionTable<ClusterRequest> options = {
      {{"cluster", kText,
        "128 (devices in one pool), 16x8 (16 nodes of 8 devices), 16x8/4 (in racks of 4 nodes), 8x4:v100,16x4:k80 "
        "(heterogeneous nodes), or a cluster file with nodes"},
       &ClusterRequest::cluster},
      {{"intra_node_bandwidth", kBytesPerSecond,
        "bandwidth between the devices of a node; default: the cluster file's, else no limit", 1},
       &ClusterRequest::intra_node_bandwidth},
      {{"inter_node_bandwidth", kBytesPerSecond,
        "bandwidth of a node's link to the others; default: the cluster file's, else no limit", 1},
       &ClusterRequest::inter_node_bandwidth},
      {{"node_cpus", kReal,
        "CPUs of each node, of which each worker takes what its job requests beside its device; default: the cluster "
        "file's, else no limit; serve without --cluster: what there is",
        0.001, 1e6},
       &ClusterRequest::node_cpus},
      {{"node_memory", kBytes, "memory of each node, of which each worker takes what its job requests, likewise", 1,
        1e15},
       &ClusterRequest::node_memory},
  };
  return options;
}

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
  for (const cluster::Node& node : cluster.nodes) {
    const int place = topology.node_named(node.name);
    if (place >= 0 && node.cpus > 0) topology.set_resource(scheduling::kCpus, place, node.cpus);
    if (place >= 0 && node.memory_bytes > 0) topology.set_resource(scheduling::kMemory, place, node.memory_bytes);
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
  scheduling::ClusterTopology topology = std::move(otherwise);
  if (request.cluster.ends_with(".yaml") || request.cluster.ends_with(".yml") ||
      request.documents.contains(request.cluster)) {
    MOTLEY_ASSIGN(const cluster::Cluster cluster,
                  read_document(request.documents, request.cluster, cluster::parse_cluster, cluster::read_cluster));
    topology = make_topology(cluster);
    if (topology.devices() == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: has no nodes with devices; accepted: one or more", request.cluster);
    }
  } else if (!request.cluster.empty()) {
    MOTLEY_ASSIGN(topology, scheduling::parse_topology(request.cluster));
  }
  if (request.intra_node_bandwidth > 0) topology.network.intra_node_bandwidth = request.intra_node_bandwidth;
  if (request.inter_node_bandwidth > 0) topology.network.inter_node_bandwidth = request.inter_node_bandwidth;
  if (request.node_cpus > 0) topology.set_resource(scheduling::kCpus, request.node_cpus);
  if (request.node_memory > 0) topology.set_resource(scheduling::kMemory, request.node_memory);
  return topology;
}

OptionText objective_option() {
  return choice("objective",
                "what gadget-exact optimises: the jobs' own utilities, or, knowing durations, completion times, the "
                "makespan, or finish-time fairness (no job behind an equal part of the cluster)",
                {"utility", "completion", "makespan", "fairness"});
}

scheduling::Objective parse_objective(const std::string& word) {
  return kObjectives.at(word);
}

}  // namespace motley::app
