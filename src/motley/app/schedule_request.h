// The cluster that jobs are scheduled on, and what policies optimise, from what a user says about them.
#pragma once

#include <string>

#include "motley/app/documents.h"
#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/scheduling/simulator/policy.h"
#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/serial/options.h"

namespace motley::app {

// A node for each node that has devices, all in one rack, of the type that its devices have; where a node has
// several, they are one of its own, such as "v100+cpu". The network is as slow as the slowest link inside a node and
// the slowest between two; without such links it has no limit there. CPUs and memory of nodes are resources.
scheduling::ClusterTopology make_topology(const cluster::Cluster& cluster);

struct ClusterRequest {
  std::string cluster;              // a description such as 16x8/4, or a cluster.yaml; "": none
  double intra_node_bandwidth = 0;  // bytes per second; 0: as the cluster file has it, else no limit
  double inter_node_bandwidth = 0;  // likewise
  double node_cpus = 0;             // of each node, which jobs' workers request; 0: as the cluster file has it
  double node_memory = 0;           // likewise, bytes
  Documents documents;              // in place of files

  static const OptionTable<ClusterRequest>& options();
};

// The topology that the request names, or `otherwise`; with the bandwidths and resources of the request.
Result<scheduling::ClusterTopology> make_topology(const ClusterRequest& request,
                                                  scheduling::ClusterTopology otherwise = {});

// What a policy optimises, as an option, and by one of its words.
OptionText objective_option();
scheduling::Objective parse_objective(const std::string& word);

}  // namespace motley::app
