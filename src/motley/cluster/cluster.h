// What a cluster is made of: the kinds of devices and their prices, the nodes and the links between them, and the
// workers that a job starts, with the pace at which each is emulated. Read from and written to cluster.yaml
// (docs/schema/cluster.schema.json).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"
#include "motley/cluster/emulation.h"

namespace motley::cluster {

// CPUs, and accelerators by PyTorch's names; the last is nn/emulated's.
enum class DeviceKind { kCpu, kCuda, kXpu, kMps, kEmulated };
const char* to_string(DeviceKind kind);  // "cpu", "cuda", "xpu", "mps", "emulated"
// Whether `device` is "auto", "cpu", or an accelerator of such a kind with or without a number, as in "cuda:1".
bool names_device(std::string_view device);

// What one device sustains, as a data sheet or a benchmark says it: enough to estimate a model that was never measured
// there (model::estimate).
struct Speed {
  double flops_per_second = 0;         // fp32, that real layers reach
  double memory_bytes_per_second = 0;  // memory bandwidth
  double lookups_per_second = 0;       // random rows of a sparse table; 0: as many as the bandwidth allows
  double layer_overhead_seconds = 0;   // a layer and direction takes at least this
  double compute_fraction = 1;         // alpha: the share of computation that several devices divide
  double communication_fraction = 1;   // beta: likewise of communication

  bool operator==(const Speed&) const = default;
};

struct DeviceType {
  std::string name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t count = 1;     // in the whole cluster
  double memory_bytes = 0;    // of one device; 0: not known
  double price_per_hour = 0;  // of one device, in the currency of all prices of the file
  std::optional<Speed> speed = {};

  bool operator==(const DeviceType&) const = default;
};

struct NodeDevices {
  std::string type;
  std::int64_t count = 1;

  bool operator==(const NodeDevices&) const = default;
};

struct Node {
  std::string name;
  std::string address = "127.0.0.1";  // as the other nodes reach it
  std::vector<NodeDevices> devices;
  double cpus = 0;          // that jobs' workers may request; 0: not known
  double memory_bytes = 0;  // likewise

  bool operator==(const Node&) const = default;
};

// Both directions between two nodes, or inside one where from == to.
struct Link {
  std::string from;
  std::string to;
  double bytes_per_second = 0;
  double latency_seconds = 0;
  bool emulated = false;  // training holds what workers of these nodes send each other to this bandwidth

  bool operator==(const Link&) const = default;
};

struct Worker {
  std::string name;
  std::string device;  // a device type
  std::string node;    // "": wherever it is started
  std::int64_t threads = 1;
  std::vector<std::int64_t> cores;          // that it is pinned to; empty: not pinned
  std::int64_t min_samples = 0;             // in a step
  std::optional<std::int64_t> max_samples;  // that its memory holds in a step
  std::optional<Emulation> emulation;       // none: as fast as it is

  bool operator==(const Worker&) const = default;
};

struct Cluster {
  std::vector<DeviceType> device_types;  // at least one; names are unique, as those of nodes and workers are
  std::vector<Node> nodes;
  std::vector<Link> links;
  std::vector<Worker> workers;  // in the order of their ranks

  const DeviceType* device_type(std::string_view name) const;  // null where there is none of that name
  // The node with the device of this number, from 0, among all of its type; null where no node has it.
  const Node* node_with(std::string_view type, std::int64_t number) const;
  // Bytes per second at which the link between two workers is emulated, by their nodes; 0: it is as fast as it is.
  double emulated_rate(const Worker& one, const Worker& other) const;
  bool operator==(const Cluster&) const = default;
};

// Errors: kInvalidInput (kIo if unreadable) with every problem of the file: line, field, value, and what is accepted.
Result<Cluster> read_cluster(const std::filesystem::path& file);
Result<Cluster> parse_cluster(std::string_view text, const std::string& name);

// The text of a cluster.yaml that reads back to an equal value.
std::string to_yaml(const Cluster& cluster);

}  // namespace motley::cluster
