// The flags that schedule's commands share: the cluster, and what a policy aims at.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "motley/scheduling/simulator/policy.h"

namespace motley::cli {

struct ClusterArguments {
  std::string topology;
  double intra_node_bandwidth = 0;  // Gb/s; 0: as the cluster file has it, else no limit
  double inter_node_bandwidth = 0;  // likewise
};

CLI::Option* add_cluster(CLI::App& command, ClusterArguments& arguments);  // returns --cluster
// Those that --cluster names, or `otherwise`; with the links of --intra-node-bandwidth and --inter-node-bandwidth.
Result<scheduling::ClusterTopology> make_topology(const ClusterArguments& arguments,
                                                  scheduling::ClusterTopology otherwise = {});

const std::map<std::string, scheduling::Objective>& objectives();  // by name
void add_objective(CLI::App& command, std::string& objective);

}  // namespace motley::cli
