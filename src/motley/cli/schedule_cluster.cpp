#include "motley/cli/schedule_cluster.h"

#include "motley/scheduling/trace/topology_of_cluster.h"

namespace motley::cli {

CLI::Option* add_cluster(CLI::App& command, ClusterArguments& arguments) {
  CLI::Option* topology = command.add_option(
      "--cluster", arguments.topology,
      "Devices: 128 in one place, 16x8 on 16 nodes of 8, 16x8/4 in racks of 4 nodes, 8x4:v100,16x4:k80 of different "
      "types, or a cluster.yaml with nodes");
  command
      .add_option("--intra-node-bandwidth", arguments.intra_node_bandwidth,
                  "Gb/s between devices of one node [no limit]")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--inter-node-bandwidth", arguments.inter_node_bandwidth,
                  "Gb/s of a node's link to the others [no limit]")
      ->check(CLI::PositiveNumber);
  return topology;
}

Result<scheduling::ClusterTopology> make_topology(const ClusterArguments& arguments,
                                                  scheduling::ClusterTopology otherwise) {
  constexpr double kGigabit = 1e9 / 8;
  scheduling::ClusterTopology topology = std::move(otherwise);
  if (arguments.topology.ends_with(".yaml") || arguments.topology.ends_with(".yml")) {
    MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(arguments.topology));
    topology = scheduling::make_topology(cluster);
    if (topology.devices() == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: has no nodes with devices; accepted: one or more", arguments.topology);
    }
  } else if (!arguments.topology.empty()) {
    MOTLEY_ASSIGN(topology, scheduling::parse_topology(arguments.topology));
  }
  if (arguments.intra_node_bandwidth > 0)
    topology.network.intra_node_bandwidth = arguments.intra_node_bandwidth * kGigabit;
  if (arguments.inter_node_bandwidth > 0)
    topology.network.inter_node_bandwidth = arguments.inter_node_bandwidth * kGigabit;
  return topology;
}

const std::map<std::string, scheduling::Objective>& objectives() {
  static const std::map<std::string, scheduling::Objective> all = {{"utility", scheduling::Objective::kUtility},
                                                                   {"completion", scheduling::Objective::kCompletion},
                                                                   {"makespan", scheduling::Objective::kMakespan},
                                                                   {"fairness", scheduling::Objective::kFairness}};
  return all;
}

void add_objective(CLI::App& command, std::string& objective) {
  command
      .add_option("--objective", objective,
                  "What gadget-exact aims at: utility of the jobs' own, or, knowing durations, short times to "
                  "completion, a short makespan, or that no job is behind an equal part of the cluster [utility]")
      ->check(CLI::IsMember(objectives()));
}

}  // namespace motley::cli
