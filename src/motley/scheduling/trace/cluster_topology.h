// Where jobs run: nodes with devices, each in a rack. All devices of a node are of one type. A node may have other
// resources beside devices, such as CPUs and memory, of which each worker of a job takes what the job requests.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::scheduling {

// Of the number of a node, a job, a device or a type: its place in a vector.
inline std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

struct Node {
  std::string name;
  int devices = 1;
  int rack = 0;
  double uplink = std::numeric_limits<double>::infinity();  // bytes a second to its rack's switch, each way
  int type = 0;                                             // of its devices: a place in ClusterTopology::types
  std::vector<double> resources = {};  // how much of each of ClusterTopology::resources; infinite: no limit
};

inline constexpr int kAnyType = -1;
inline constexpr const char* kCpus = "cpus";      // names of resources: CPUs that a node has
inline constexpr const char* kMemory = "memory";  // bytes of a node's

// How fast gradients travel, where nothing is reserved for them. Rings that leave their nodes slow each other down
// where they meet: the model of SJF-BCO (Yu, Ji, Rajan, Liu, MobiHoc 2022). Without limits here, speed depends on no
// placement.
struct Network {
  double intra_node_bandwidth = std::numeric_limits<double>::infinity();  // bytes a second between devices of one node
  double inter_node_bandwidth =
      std::numeric_limits<double>::infinity();  // bytes a second between nodes, for a ring on its own
  double contention = 1;  // share of the time in which rings that share a link use the same link (xi1)
  double loss = 0;        // of bandwidth for each other ring beside what it takes (alpha): f(k) = k + alpha (k - 1)
  double seconds_per_node = 0;  // of each iteration, for each node that the ring goes over (xi2)
};

struct ClusterTopology {
  std::vector<Node> nodes;
  int racks = 1;
  std::vector<double> rack_uplinks = {};  // bytes a second to the other racks, each way; empty: no limit
  Network network = {};
  std::vector<std::string> types = {};      // names of types of devices; empty: all are alike
  std::vector<std::string> resources = {};  // names of what nodes have beside devices, in units of their own
  bool gives_whole_cpus = false;            // what a worker requests is rounded up, as Slurm does

  int devices(int type = kAnyType) const;       // of all nodes of this type
  int largest_node(int type = kAnyType) const;  // its devices
  int type_count() const { return types.empty() ? 1 : static_cast<int>(types.size()); }
  int node_named(const std::string& name) const;  // its number; -1 where there is none
  std::string type_name(const Node& node) const;  // empty where all are alike
  int type_named(const std::string& name);        // its place among the types, to which it is added where it is new
  bool is_of_type(int node, int type) const { return type == kAnyType || nodes[index(node)].type == type; }
  int resource_named(const std::string& name) const;  // its place among the resources; -1 where there is none
  // How much of it each node has, or this one; nodes of which nothing is said have no limit.
  void set_resource(const std::string& name, double of_each_node);
  void set_resource(const std::string& name, int node, double amount);
  // Without resources of its own it has as much of each as the node that has most of it.
  void add_node(Node node);
  double most(int resource) const;   // that one node with devices has
  double total(int resource) const;  // of all nodes that have devices
  // Workers that have room on a node with nobody else, where each requests so much of each resource besides its device.
  int workers_on(int node, std::span<const double> requests) const;
  int workers(std::span<const double> requests, int type = kAnyType) const;  // likewise, on all nodes of this type
  double rack_uplink(int rack) const;
};

// For how many of so many workers there is enough, where each requests so much of each resource and so much is
// available; for all of them where either is empty.
int limit_workers(int workers, std::span<const double> requests, std::span<const double> available);

// "8 CPUs", "16 GB of memory".
std::string describe_amount(const std::string& resource, double amount);
// "8 of 64 CPUs", "16 GB of 256 GB of memory".
std::string describe_used(const std::string& resource, double used, double total);

// All devices in one place, as schedulers count them that know no nodes.
ClusterTopology pool(int devices);
// Servers alike, in racks of `servers_a_rack` each (0: all in one), the last of which may be smaller.
ClusterTopology uniform(int nodes, int devices_each, int nodes_per_rack = 0);

// "128" is a pool, "16x8" are 16 nodes of 8 devices, "16x8/4" the same in racks of 4 nodes; "8x4:v100,16x4:k80" are
// nodes with heterogeneous devices. Errors: kInvalidInput.
Result<ClusterTopology> parse_topology(const std::string& text);

// Workers of a job on one node.
struct Part {
  int node = 0;
  int workers = 0;
  bool operator==(const Part&) const = default;
};
// By node, ascending; empty: the job does not run.
using Placement = std::vector<Part>;
int count_workers(const Placement& placement);

// How far a job's ring goes.
enum class Locality : std::uint8_t { kNode, kRack, kCluster };
Locality find_locality(const ClusterTopology& topology, const Placement& placement);
// The type of all its devices; kAnyType where they are of several.
int find_type(const ClusterTopology& topology, const Placement& placement);
// Whether all its devices are of this type; always, where it is kAnyType.
bool is_of_type(const ClusterTopology& topology, const Placement& placement, int type);

}  // namespace motley::scheduling
