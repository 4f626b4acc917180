#include "motley/scheduling/trace/cluster_topology.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "motley/base/units.h"

namespace motley::scheduling {

int limit_workers(int workers, std::span<const double> requests, std::span<const double> available) {
  constexpr double kSlack = 1e-9;  // relative: amounts that rounding may feign to be missing
  for (std::size_t i = 0; i < requests.size() && i < available.size(); ++i) {
    if (requests[i] <= 0) continue;
    const double most = std::floor(available[i] / requests[i] * (1 + kSlack) + kSlack);
    workers = std::min(workers, static_cast<int>(std::clamp<double>(most, 0, workers)));
  }
  return workers;
}

std::string describe_amount(const std::string& resource, double amount) {
  if (resource == kMemory) return format_bytes(amount) + " of memory";
  return fmt::format("{:g} {}", amount, resource != kCpus ? resource : amount == 1 ? "CPU" : "CPUs");
}

std::string describe_used(const std::string& resource, double used, double total) {
  if (resource == kMemory) return fmt::format("{} of {} of memory", format_bytes(used), format_bytes(total));
  return fmt::format("{:g} of {:g} {}", used, total, resource == kCpus ? "CPUs" : resource);
}

int ClusterTopology::devices(int type) const {
  int devices = 0;
  for (const Node& node : nodes) {
    if (type == kAnyType || node.type == type) devices += node.devices;
  }
  return devices;
}

int ClusterTopology::largest_node(int type) const {
  int largest = 0;
  for (const Node& node : nodes) {
    if (type == kAnyType || node.type == type) largest = std::max(largest, node.devices);
  }
  return largest;
}

int ClusterTopology::node_named(const std::string& name) const {
  const auto found = std::ranges::find(nodes, name, &Node::name);
  return found == nodes.end() ? -1 : static_cast<int>(found - nodes.begin());
}

std::string ClusterTopology::type_name(const Node& node) const {
  return types.empty() ? "" : types[index(node.type)];
}

int ClusterTopology::type_named(const std::string& name) {
  const auto known = std::ranges::find(types, name);
  const auto place = static_cast<int>(known - types.begin());
  if (known == types.end()) types.push_back(name);
  return place;
}

int ClusterTopology::resource_named(const std::string& name) const {
  const auto found = std::ranges::find(resources, name);
  return found == resources.end() ? -1 : static_cast<int>(found - resources.begin());
}

void ClusterTopology::set_resource(const std::string& name, double of_each_node) {
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) set_resource(name, node, of_each_node);
}

void ClusterTopology::set_resource(const std::string& name, int node, double amount) {
  if (resource_named(name) < 0) {
    resources.push_back(name);
    for (Node& one : nodes) one.resources.push_back(std::numeric_limits<double>::infinity());
  }
  nodes[index(node)].resources[index(resource_named(name))] = amount;
}

void ClusterTopology::add_node(Node node) {
  for (std::size_t i = node.resources.size(); i < resources.size(); ++i) {
    node.resources.push_back(most(static_cast<int>(i)));
  }
  nodes.push_back(std::move(node));
}

double ClusterTopology::most(int resource) const {
  double most = 0;
  for (const Node& node : nodes) most = std::max(most, node.devices == 0 ? 0 : node.resources[index(resource)]);
  return most;
}

double ClusterTopology::total(int resource) const {
  double sum = 0;
  for (const Node& node : nodes) sum += node.devices == 0 ? 0 : node.resources[index(resource)];
  return sum;
}

int ClusterTopology::workers_on(int node, std::span<const double> requests) const {
  return limit_workers(nodes[index(node)].devices, requests, nodes[index(node)].resources);
}

int ClusterTopology::workers(std::span<const double> requests, int type) const {
  int workers = 0;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    if (is_of_type(node, type)) workers += workers_on(node, requests);
  }
  return workers;
}

double ClusterTopology::rack_uplink(int rack) const {
  return rack_uplinks.empty() ? std::numeric_limits<double>::infinity() : rack_uplinks[index(rack)];
}

ClusterTopology pool(int devices) {
  return {{{"pool", devices, 0}}, 1};
}

ClusterTopology uniform(int nodes, int devices_each, int nodes_per_rack) {
  ClusterTopology topology;
  const int in_rack = nodes_per_rack > 0 ? nodes_per_rack : std::max(1, nodes);
  for (int i = 0; i < nodes; ++i) {
    topology.nodes.push_back({fmt::format("node{}", i), devices_each, i / in_rack});
  }
  topology.racks = (nodes + in_rack - 1) / in_rack;
  return topology;
}

namespace {

constexpr int kMaxDevices = 1'000'000;

// Of "16x8/4": 16, 8 and 4; nothing where it is not understood.
std::vector<int> read_numbers(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (const char separator : {'x', '/', '\0'}) {
    int number = 0;
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc() || number < 1 || number > kMaxDevices) return {};
    numbers.push_back(number);
    if (rest == end) return numbers;
    if (*rest != separator) return {};
    at = rest + 1;
  }
  return {};
}

// Servers behind those that there are, in racks of their own.
void append(ClusterTopology& topology, const ClusterTopology& more, int type) {
  for (Node node : more.nodes) {
    if (!topology.types.empty()) node.name = fmt::format("node{}", topology.nodes.size());
    node.rack += topology.racks;
    node.type = type;
    topology.nodes.push_back(std::move(node));
  }
  topology.racks += more.racks;
}

}  // namespace

Result<ClusterTopology> parse_topology(const std::string& text) {
  const auto refuse = [&] {
    return fail(ErrorCode::kInvalidInput,
                "cluster: '{}' is not understood; accepted: a number of devices such as 128, nodes of some devices "
                "each such as 16x8, or these in racks of some nodes each such as 16x8/4, of up to {} devices; with "
                "heterogeneous devices these with their types, such as 8x4:v100,16x4:k80",
                text, kMaxDevices);
  };
  ClusterTopology topology;
  topology.racks = 0;
  std::int64_t devices = 0;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    const std::size_t colon = part.find(':');
    const std::vector<int> numbers = read_numbers(part.substr(0, colon));
    if (numbers.empty()) return refuse();
    devices += std::int64_t{numbers[0]} * (numbers.size() > 1 ? numbers[1] : 1);
    if (devices > kMaxDevices) return refuse();
    int type = 0;
    if (colon == std::string_view::npos) {
      if (part.size() != text.size()) return refuse();  // of several parts each has a type
    } else {
      const std::string name(part.substr(colon + 1));
      if (name.empty() || name.find(':') != std::string::npos) return refuse();
      type = topology.type_named(name);
    }
    append(
        topology,
        numbers.size() == 1 ? pool(numbers[0]) : uniform(numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 0),
        type);
    at = end + 1;
  }
  return topology;
}

int count_workers(const Placement& placement) {
  int workers = 0;
  for (const Part& part : placement) workers += part.workers;
  return workers;
}

Locality find_locality(const ClusterTopology& topology, const Placement& placement) {
  if (placement.size() <= 1) return Locality::kNode;
  const int rack = topology.nodes[index(placement.front().node)].rack;
  const bool in_one =
      std::ranges::all_of(placement, [&](const Part& part) { return topology.nodes[index(part.node)].rack == rack; });
  return in_one ? Locality::kRack : Locality::kCluster;
}

int find_type(const ClusterTopology& topology, const Placement& placement) {
  if (placement.empty()) return kAnyType;
  const int type = topology.nodes[index(placement.front().node)].type;
  return std::ranges::all_of(placement, [&](const Part& part) { return topology.is_of_type(part.node, type); })
             ? type
             : kAnyType;
}

bool is_of_type(const ClusterTopology& topology, const Placement& placement, int type) {
  return type == kAnyType || find_type(topology, placement) == type;
}

}  // namespace motley::scheduling
