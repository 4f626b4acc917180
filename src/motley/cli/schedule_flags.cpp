#include "motley/cli/schedule_flags.h"

namespace motley::cli {

CLI::Option* add_cluster(CLI::App& command, app::ClusterRequest& request) {
  CLI::Option* topology = command.add_option(
      "--cluster", request.topology,
      "Devices: 128 in one place, 16x8 on 16 nodes of 8, 16x8/4 in racks of 4 nodes, 8x4:v100,16x4:k80 of different "
      "types, or a cluster.yaml with nodes");
  command
      .add_option("--intra-node-bandwidth", request.intra_node_bandwidth, "Gb/s between devices of one node [no limit]")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--inter-node-bandwidth", request.inter_node_bandwidth,
                  "Gb/s of a node's link to the others [no limit]")
      ->check(CLI::PositiveNumber);
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
