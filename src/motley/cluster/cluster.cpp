#include "motley/cluster/cluster.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cluster/renamed_keys.h"
#include "motley/serial/strict_yaml.h"

namespace motley::cluster {
namespace {

constexpr int kVersion = 2;

const std::vector<std::pair<std::string, DeviceKind>>& device_kinds() {
  static const std::vector<std::pair<std::string, DeviceKind>> kinds = {{"cpu", DeviceKind::kCpu},
                                                                        {"cuda", DeviceKind::kCuda}};
  return kinds;
}

const std::vector<std::pair<std::string, Delay::Kind>>& delay_kinds() {
  static const std::vector<std::pair<std::string, Delay::Kind>> kinds = {
      {"fixed", Delay::Kind::kFixed},   {"uniform", Delay::Kind::kUniform},
      {"normal", Delay::Kind::kNormal}, {"exponential", Delay::Kind::kExponential},
      {"gamma", Delay::Kind::kGamma},   {"bernoulli", Delay::Kind::kBernoulli}};
  return kinds;
}

// A name that can stand in logs and file names; refused if it is in `taken`, else put there.
std::string read_name(const StrictYaml& section, std::set<std::string>& taken) {
  std::string name = section.text("name");
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  if (name.size() > 64 || !std::ranges::all_of(name, plain)) {
    section.refuse("name", fmt::format("is '{}'; accepted: up to 64 letters, digits, '-', '_' and '.'", name));
  } else if (!name.empty() && !taken.insert(name).second) {
    section.refuse("name", fmt::format("is '{}', which an earlier one has too; accepted: a name of its own", name));
  }
  return name;
}

// Refuses the value of `key` unless it is one of the names.
void expect_one_of(const StrictYaml& section, std::string_view key, const std::string& value,
                   const std::set<std::string>& names) {
  if (!value.empty() && !names.contains(value)) {
    section.refuse(
        key, fmt::format("is '{}'; accepted: {}", value,
                         names.empty() ? "none, as none is declared" : fmt::format("{}", fmt::join(names, ", "))));
  }
}

Delay read_delay(const StrictYaml& section) {
  if (!section.is_section("delay")) {
    return {.kind = Delay::Kind::kFixed, .seconds = section.seconds("delay", {.min = 0, .fallback = 0})};
  }
  const StrictYaml delay = section.section("delay");
  Delay result;
  result.kind = delay.choose_from<Delay::Kind>("distribution", delay_kinds());
  switch (result.kind) {
    case Delay::Kind::kFixed:
      result.seconds = delay.seconds("seconds");
      break;
    case Delay::Kind::kBernoulli:
      result.seconds = delay.seconds("seconds");
      result.probability = delay.number("probability", {.min = 0, .max = 1});
      break;
    case Delay::Kind::kExponential:
      result.seconds = delay.seconds("mean", {.above = 0.0});
      break;
    case Delay::Kind::kGamma:
      result.seconds = delay.seconds("mean", {.above = 0.0});
      // A gamma of almost no deviation has a shape beyond what can be drawn; of a huge one, it is all but zero.
      result.deviation = delay.seconds("deviation", {.min = 1e-3 * result.seconds, .max = 10 * result.seconds});
      break;
    case Delay::Kind::kUniform:
      result.seconds = delay.seconds("mean");
      result.deviation = delay.seconds("deviation", {.min = 0, .max = result.seconds / std::sqrt(3.0)});
      break;
    case Delay::Kind::kNormal:
      result.seconds = delay.seconds("mean");
      result.deviation = delay.seconds("deviation");
      break;
  }
  return result;
}

std::optional<Emulation> read_emulation(const StrictYaml& worker) {
  if (!worker.has("seconds_per_sample")) {
    for (const char* key : {"delay", "changes"}) {
      if (worker.has(key)) {
        worker.refuse(key, "needs seconds_per_sample beside it, because only an emulated worker has a pace to change");
      }
    }
    return std::nullopt;
  }
  Emulation emulation;
  emulation.seconds_per_sample = worker.seconds("seconds_per_sample", {.above = 0.0});
  emulation.delay = read_delay(worker);
  std::int64_t earliest = 1;
  for (const StrictYaml& section : worker.list("changes")) {
    SpeedChange change;
    change.from_step = section.integer("from_step", {.min = earliest});
    earliest = std::max(earliest, change.from_step) + 1;
    if (section.has("seconds_per_sample")) {
      change.seconds_per_sample = section.seconds("seconds_per_sample", {.above = 0.0});
    }
    if (section.has("delay")) {
      change.delay = read_delay(section);
    }
    if (!change.seconds_per_sample && !change.delay) {
      section.refuse("", "changes nothing; accepted: seconds_per_sample, delay, or both");
    }
    emulation.changes.push_back(change);
  }
  return emulation;
}

Speed read_speed(const StrictYaml& section) {
  Speed speed;
  speed.flops_per_second = section.number("flops_per_second", {.above = 0.0});
  speed.memory_bytes_per_second = section.bytes_per_second("memory_bandwidth");
  speed.lookups_per_second = section.number("lookups_per_second", {.min = 0, .fallback = 0});
  speed.layer_overhead_seconds = section.seconds("layer_overhead", {.min = 0, .fallback = 0});
  speed.compute_fraction = section.number("compute_fraction", {.min = 0, .max = 1, .fallback = 1});
  speed.communication_fraction = section.number("communication_fraction", {.min = 0, .max = 1, .fallback = 1});
  return speed;
}

Worker read_worker(const StrictYaml& section, const std::set<std::string>& types, const std::set<std::string>& nodes,
                   std::set<std::string>& names) {
  Worker worker;
  worker.name = read_name(section, names);
  worker.device = section.text("device");
  expect_one_of(section, "device", worker.device, types);
  worker.node = section.text("node", "");
  expect_one_of(section, "node", worker.node, nodes);
  worker.threads = section.integer("threads", {.min = 1, .max = 4096, .fallback = 1});
  worker.cores = section.integers("cores", {.min = 0, .max = 65535});
  if (std::set<std::int64_t>(worker.cores.begin(), worker.cores.end()).size() != worker.cores.size()) {
    section.refuse("cores", "names a core twice; accepted: each once");
  }
  worker.min_samples = section.integer("min_samples", {.min = 0, .max = 1'000'000'000, .fallback = 0});
  if (section.has("max_samples")) {
    worker.max_samples =
        section.integer("max_samples", {.min = std::max<std::int64_t>(1, worker.min_samples), .max = 1'000'000'000});
  }
  worker.emulation = read_emulation(section);
  return worker;
}

}  // namespace

const char* to_string(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

const Node* Cluster::node_with(std::string_view type, std::int64_t number) const {
  for (const Node& node : nodes) {
    for (const NodeDevices& held : node.devices) {
      if (held.type != type) continue;
      if (number < held.count) return &node;
      number -= held.count;
    }
  }
  return nullptr;
}

double Cluster::emulated_rate(const Worker& one, const Worker& other) const {
  const auto joins = [&](const Link& link) {
    return link.emulated &&
           ((link.from == one.node && link.to == other.node) || (link.from == other.node && link.to == one.node));
  };
  const auto link = std::ranges::find_if(links, joins);
  return link == links.end() ? 0 : link->bytes_per_second;
}

const DeviceType* Cluster::device_type(std::string_view name) const {
  const auto found = std::ranges::find(device_types, name, &DeviceType::name);
  return found == device_types.end() ? nullptr : &*found;
}

Result<Cluster> read_cluster(const std::filesystem::path& file) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, 1'000'000));
  return parse_cluster(text, file.string());
}

Result<Cluster> parse_cluster(std::string_view text, const std::string& name) {
  MOTLEY_ASSIGN(const StrictYaml file, StrictYaml::parse(text, name));
  if (file.text("version", "") == fmt::format("{}", kVersion - 1)) {
    file.refuse("version", fmt::format("is '{}'; accepted: {}, in which {}, and durations, sizes and rates have units",
                                       kVersion - 1, kVersion, to_string(kRenamedKeys)));
  } else {
    file.integer("version", {.min = kVersion, .max = kVersion});
  }
  Cluster cluster;

  std::set<std::string> types;
  std::map<std::string, std::int64_t> left;  // devices of a type that no node has claimed yet
  for (const StrictYaml& section : file.list("device_types", {.min_size = 1, .max_size = 1000})) {
    DeviceType type;
    type.name = read_name(section, types);
    type.kind = section.choose_from<DeviceKind>("kind", device_kinds());
    type.count = section.integer("count", {.min = 0, .max = 1'000'000, .fallback = 1});
    type.memory_bytes = section.bytes("memory", {.min = 0, .fallback = 0});
    type.price_per_hour = section.number("price_per_hour", {.min = 0, .fallback = 0});
    if (section.has("speed")) {
      type.speed = read_speed(section.section("speed"));
    }
    left[type.name] = type.count;
    cluster.device_types.push_back(type);
  }

  std::set<std::string> nodes;
  for (const StrictYaml& section : file.list("nodes")) {
    Node node;
    node.name = read_name(section, nodes);
    node.address = section.text("address", "127.0.0.1");
    for (const StrictYaml& devices : section.list("devices")) {
      NodeDevices held;
      held.type = devices.text("type");
      expect_one_of(devices, "type", held.type, types);
      held.count = devices.integer("count", {.min = 1, .max = 1'000'000, .fallback = 1});
      left[held.type] -= held.count;
      if (types.contains(held.type) && left[held.type] < 0) {
        devices.refuse("count", fmt::format("is {}, {} more than device_types has of '{}'", held.count,
                                            -left[held.type], held.type));
      }
      node.devices.push_back(held);
    }
    cluster.nodes.push_back(node);
  }

  for (const StrictYaml& section : file.list("links")) {
    Link link;
    link.from = section.text("from");
    expect_one_of(section, "from", link.from, nodes);
    link.to = section.text("to");
    expect_one_of(section, "to", link.to, nodes);
    link.bytes_per_second = section.bytes_per_second("bandwidth");
    link.latency_seconds = section.seconds("latency", {.min = 0, .fallback = 0});
    link.emulated = section.boolean("emulated", false);
    cluster.links.push_back(link);
  }

  std::set<std::string> workers;
  for (const StrictYaml& section : file.list("workers")) {
    cluster.workers.push_back(read_worker(section, types, nodes, workers));
  }
  MOTLEY_TRY(file.finish());
  return cluster;
}

namespace {

// Numbers are written with all their digits, so that reading gives the same value.
std::string digits(double value) {
  return fmt::format("{}", value);
}

void put_name(YAML::Emitter& out, const char* key, const std::string& name) {
  out << YAML::Key << key << YAML::Value << YAML::DoubleQuoted << name;
}

template <class T>
void put(YAML::Emitter& out, const char* key, const T& value) {
  out << YAML::Key << key << YAML::Value << value;
}

void put_speed(YAML::Emitter& out, const Speed& speed) {
  out << YAML::Key << "speed" << YAML::Value << YAML::BeginMap;
  put(out, "flops_per_second", digits(speed.flops_per_second));
  put(out, "memory_bandwidth", exact_bytes_per_second(speed.memory_bytes_per_second));
  put(out, "lookups_per_second", digits(speed.lookups_per_second));
  put(out, "layer_overhead", exact_seconds(speed.layer_overhead_seconds));
  put(out, "compute_fraction", digits(speed.compute_fraction));
  put(out, "communication_fraction", digits(speed.communication_fraction));
  out << YAML::EndMap;
}

void put_delay(YAML::Emitter& out, const Delay& delay) {
  out << YAML::Key << "delay" << YAML::Value;
  if (delay.kind == Delay::Kind::kFixed) {
    out << exact_seconds(delay.seconds);
    return;
  }
  const auto named = std::ranges::find(delay_kinds(), delay.kind, &std::pair<std::string, Delay::Kind>::second);
  out << YAML::Flow << YAML::BeginMap;
  put(out, "distribution", named->first);
  put(out, delay.kind == Delay::Kind::kBernoulli ? "seconds" : "mean", exact_seconds(delay.seconds));
  if (delay.kind == Delay::Kind::kBernoulli) {
    put(out, "probability", digits(delay.probability));
  } else if (delay.kind != Delay::Kind::kExponential) {
    put(out, "deviation", exact_seconds(delay.deviation));
  }
  out << YAML::EndMap;
}

void put_worker(YAML::Emitter& out, const Worker& worker) {
  out << YAML::BeginMap;
  put_name(out, "name", worker.name);
  put_name(out, "device", worker.device);
  if (!worker.node.empty()) {
    put_name(out, "node", worker.node);
  }
  put(out, "threads", worker.threads);
  if (!worker.cores.empty()) {
    out << YAML::Key << "cores" << YAML::Value << YAML::Flow << worker.cores;
  }
  put(out, "min_samples", worker.min_samples);
  if (worker.max_samples) {
    put(out, "max_samples", *worker.max_samples);
  }
  if (worker.emulation) {
    put(out, "seconds_per_sample", exact_seconds(worker.emulation->seconds_per_sample));
    put_delay(out, worker.emulation->delay);
    out << YAML::Key << "changes" << YAML::Value << YAML::BeginSeq;
    for (const SpeedChange& change : worker.emulation->changes) {
      out << YAML::BeginMap;
      put(out, "from_step", change.from_step);
      if (change.seconds_per_sample) {
        put(out, "seconds_per_sample", exact_seconds(*change.seconds_per_sample));
      }
      if (change.delay) {
        put_delay(out, *change.delay);
      }
      out << YAML::EndMap;
    }
    out << YAML::EndSeq;
  }
  out << YAML::EndMap;
}

}  // namespace

std::string to_yaml(const Cluster& cluster) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  put(out, "version", kVersion);
  out << YAML::Key << "device_types" << YAML::Value << YAML::BeginSeq;
  for (const DeviceType& type : cluster.device_types) {
    out << YAML::BeginMap;
    put_name(out, "name", type.name);
    put(out, "kind", to_string(type.kind));
    put(out, "count", type.count);
    put(out, "memory", exact_bytes(type.memory_bytes));
    put(out, "price_per_hour", digits(type.price_per_hour));
    if (type.speed) {
      put_speed(out, *type.speed);
    }
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::Key << "nodes" << YAML::Value << YAML::BeginSeq;
  for (const Node& node : cluster.nodes) {
    out << YAML::BeginMap;
    put_name(out, "name", node.name);
    put_name(out, "address", node.address);
    out << YAML::Key << "devices" << YAML::Value << YAML::BeginSeq;
    for (const NodeDevices& held : node.devices) {
      out << YAML::Flow << YAML::BeginMap;
      put_name(out, "type", held.type);
      put(out, "count", held.count);
      out << YAML::EndMap;
    }
    out << YAML::EndSeq << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::Key << "links" << YAML::Value << YAML::BeginSeq;
  for (const Link& link : cluster.links) {
    out << YAML::Flow << YAML::BeginMap;
    put_name(out, "from", link.from);
    put_name(out, "to", link.to);
    put(out, "bandwidth", exact_bytes_per_second(link.bytes_per_second));
    put(out, "latency", exact_seconds(link.latency_seconds));
    if (link.emulated) put(out, "emulated", true);
    out << YAML::EndMap;
  }
  out << YAML::EndSeq << YAML::Key << "workers" << YAML::Value << YAML::BeginSeq;
  for (const Worker& worker : cluster.workers) {
    put_worker(out, worker);
  }
  out << YAML::EndSeq << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace motley::cluster
