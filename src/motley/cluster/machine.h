// What this machine is and what of Motley works on it: the default cluster, and the answers of `motley check`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/cluster/cluster.h"

namespace motley::cluster {

struct Gpu {
  std::string name;
  double memory_bytes = 0;
};

struct Machine {
  std::string processor;          // "AMD EPYC 9B14"
  std::string topology;           // "2 cores in 1 package, 1 memory node"; empty without hwloc
  int cores = 1;                  // that this process may use: its affinity, less what a cgroup takes away
  double memory_bytes = 0;        // the machine's, or the cgroup's limit where that is lower
  double shared_memory_free = 0;  // of /dev/shm, in bytes; 0 where there is none
  std::vector<Gpu> gpus;
};

// What a control group allows: processors (may be broken) and bytes; none where it sets no limit.
struct GroupLimits {
  std::optional<double> processors;
  std::optional<double> memory_bytes;
};

// Reads the limits of the group and of all groups above it. `root` is /sys/fs/cgroup and `membership` the content of
// /proc/self/cgroup; both versions of control groups are read. What cannot be read sets no limit.
GroupLimits read_group_limits(const std::filesystem::path& root, std::string_view membership);

// The speeds of the machine's own network cards that have a link, by name, in bytes a second of each direction. `root`
// is /sys/class/net; what is only software (bridges, tunnels, ends of pairs) is left out.
struct NetworkCard {
  std::string name;
  double bytes_per_second = 0;
};
std::vector<NetworkCard> network_cards(const std::filesystem::path& root);

// Looks at this machine; asks nvidia-smi for GPUs where it is installed. Takes up to a few seconds.
Machine detect_machine();

// The machine as a cluster of one node, with one worker a GPU, or one of all cores where there is no GPU.
Cluster default_cluster(const Machine& machine);
// Makes that cluster's CPU a device for each worker of so many threads that the machine has cores for, at least one.
void divide_cpu(const Machine& machine, std::int64_t threads, Cluster& cluster);

struct CheckItem {
  std::string name;
  bool works = false;
  bool needed = false;  // without it no job runs here; else only what `advice` names is lost
  std::string found;    // what is there, or what went wrong
  std::string advice;   // where it does not work: what that costs, and how to get it
};

// Tries what Motley uses: cores, memory, shared memory, TCP on loopback, libtorch (its version as the caller was built
// with, empty for none), GPUs, network namespaces, and optional programs. Changes nothing that outlives the call.
std::vector<CheckItem> check_machine(const Machine& machine, const std::string& torch_version);

// The answers as aligned lines for a terminal.
std::string to_text(const std::vector<CheckItem>& items);

}  // namespace motley::cluster
