#include "motley/cluster/cluster.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/serial/renamed_keys.h"
#include "motley/serial/strict_yaml.h"

namespace motley::cluster {
namespace {

constexpr int kVersion = 2;
constexpr RenamedKey kRenamedKeys[] = {{"speed.fixed", "speed.layer_overhead"}};  // since version 1

const std::vector<std::pair<std::string, DeviceKind>>& device_kinds() {
  static const std::vector<std::pair<std::string, DeviceKind>> kinds = {{"cpu", DeviceKind::kCpu},
                                                                        {"cuda", DeviceKind::kCuda},
                                                                        {"xpu", DeviceKind::kXpu},
                                                                        {"mps", DeviceKind::kMps},
                                                                        {"emulated", DeviceKind::kEmulated}};
  return kinds;
}

const std::vector<std::pair<std::string, Delay::Kind>>& delay_kinds() {
  static const std::vector<std::pair<std::string, Delay::Kind>> kinds = {
      {"fixed", Delay::Kind::kFixed},   {"uniform", Delay::Kind::kUniform},
      {"normal", Delay::Kind::kNormal}, {"exponential", Delay::Kind::kExponential},
      {"gamma", Delay::Kind::kGamma},   {"bernoulli", Delay::Kind::kBernoulli}};
  return kinds;
}

// "gpu" is as near to "cpu" as a slip of the finger.
DeviceKind read_kind(const StrictYaml& section) {
  if (section.text("kind", "") != "gpu") return section.choose_from<DeviceKind>("kind", device_kinds());
  section.refuse("kind",
                 "is 'gpu'; accepted, by PyTorch's names: cuda (NVIDIA's and AMD's), xpu (Intel's), mps "
                 "(Apple's), or cpu");
  return DeviceKind::kCuda;
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
    if (section.has("delay")) change.delay = read_delay(section);
    if (!change.seconds_per_sample && !change.delay) {
      section.refuse("", "changes nothing; accepted: seconds_per_sample, delay, or both");
    }
    emulation.changes.push_back(change);
  }
  return emulation;
}

Speed read_speed(const StrictYaml& section) {
  return {.flops_per_second = section.number("flops_per_second", {.above = 0.0}),
          .memory_bytes_per_second = section.bytes_per_second("memory_bandwidth"),
          .lookups_per_second = section.number("lookups_per_second", {.min = 0, .fallback = 0}),
          .layer_overhead_seconds = section.seconds("layer_overhead", {.min = 0, .fallback = 0}),
          .compute_fraction = section.number("compute_fraction", {.min = 0, .max = 1, .fallback = 1}),
          .communication_fraction = section.number("communication_fraction", {.min = 0, .max = 1, .fallback = 1})};
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
  return std::ranges::find(device_kinds(), kind, &std::pair<std::string, DeviceKind>::second)->first.c_str();
}

bool names_device(std::string_view device) {
  if (device == "auto" || device == "cpu") return true;
  const std::string_view name = device.substr(0, device.find(':'));
  const std::string_view number = device.substr(std::min(device.size(), name.size() + 1));
  const bool is_plain = name.size() == device.size();
  return (is_plain || (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos)) &&
         name != "cpu" &&
         std::ranges::find(device_kinds(), name, &std::pair<std::string, DeviceKind>::first) != device_kinds().end();
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
    DeviceType type{.name = read_name(section, types),
                    .kind = read_kind(section),
                    .count = section.integer("count", {.min = 0, .max = 1'000'000, .fallback = 1}),
                    .memory_bytes = section.bytes("memory", {.min = 0, .fallback = 0}),
                    .price_per_hour = section.number("price_per_hour", {.min = 0, .fallback = 0})};
    if (section.has("speed")) type.speed = read_speed(section.section("speed"));
    left[type.name] = type.count;
    cluster.device_types.push_back(type);
  }

  std::set<std::string> nodes;
  for (const StrictYaml& section : file.list("nodes")) {
    Node node{.name = read_name(section, nodes),
              .address = section.text("address", "127.0.0.1"),
              .devices = {},
              .cpus = section.has("cpus") ? section.number("cpus", {.min = 0.001, .max = 1e6}) : 0,
              .memory_bytes = section.has("memory") ? section.bytes("memory", {.min = 1, .max = 1e15}) : 0};
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

std::string quoted(const std::string& text) {
  YAML::Emitter out;
  out << YAML::DoubleQuoted << text;
  return out.c_str();
}

// A key with the values below it, each of one or more lines.
template <class T, class Write>
std::string list(const char* key, const std::vector<T>& values, const Write& write) {
  std::string text = fmt::format("{}:{}\n", key, values.empty() ? " []" : "");
  for (const T& value : values) {
    std::string item = write(value);
    if (item.ends_with('\n')) item.pop_back();
    text += "  - ";
    for (const char c : item) text += c == '\n' ? "\n    " : std::string(1, c);
    text += "\n";
  }
  return text;
}

std::string write_delay(const Delay& delay) {
  const std::string seconds = exact_seconds(delay.seconds), deviation = exact_seconds(delay.deviation);
  const auto named = std::ranges::find(delay_kinds(), delay.kind, &std::pair<std::string, Delay::Kind>::second);
  switch (delay.kind) {
    case Delay::Kind::kFixed:
      return seconds;
    case Delay::Kind::kBernoulli:
      return fmt::format("{{distribution: {}, seconds: {}, probability: {}}}", named->first, seconds,
                         delay.probability);
    case Delay::Kind::kExponential:
      return fmt::format("{{distribution: {}, mean: {}}}", named->first, seconds);
    default:
      return fmt::format("{{distribution: {}, mean: {}, deviation: {}}}", named->first, seconds, deviation);
  }
}

std::string write_change(const SpeedChange& change) {
  std::string text = fmt::format("from_step: {}", change.from_step);
  if (change.seconds_per_sample) text += "\nseconds_per_sample: " + exact_seconds(*change.seconds_per_sample);
  if (change.delay) text += "\ndelay: " + write_delay(*change.delay);
  return text;
}

std::string write_worker(const Worker& worker) {
  std::string text = fmt::format("name: {}\ndevice: {}\n", quoted(worker.name), quoted(worker.device));
  if (!worker.node.empty()) text += fmt::format("node: {}\n", quoted(worker.node));
  text += fmt::format("threads: {}\n", worker.threads);
  if (!worker.cores.empty()) text += fmt::format("cores: [{}]\n", fmt::join(worker.cores, ", "));
  text += fmt::format("min_samples: {}", worker.min_samples);
  if (worker.max_samples) text += fmt::format("\nmax_samples: {}", *worker.max_samples);
  if (const auto& emulation = worker.emulation) {
    text += fmt::format("\nseconds_per_sample: {}\ndelay: {}\n{}", exact_seconds(emulation->seconds_per_sample),
                        write_delay(emulation->delay), list("changes", emulation->changes, write_change));
  }
  return text;
}

std::string write_device_type(const DeviceType& type) {
  std::string text = fmt::format("name: {}\nkind: {}\ncount: {}\nmemory: {}\nprice_per_hour: {}", quoted(type.name),
                                 to_string(type.kind), type.count, exact_bytes(type.memory_bytes), type.price_per_hour);
  if (const auto& speed = type.speed) {
    text += fmt::format(
        "\nspeed:\n  flops_per_second: {}\n  memory_bandwidth: {}\n  lookups_per_second: {}\n  layer_overhead: {}\n"
        "  compute_fraction: {}\n  communication_fraction: {}",
        speed->flops_per_second, exact_bytes_per_second(speed->memory_bytes_per_second), speed->lookups_per_second,
        exact_seconds(speed->layer_overhead_seconds), speed->compute_fraction, speed->communication_fraction);
  }
  return text;
}

std::string write_node(const Node& node) {
  std::string text = fmt::format("name: {}\naddress: {}\n", quoted(node.name), quoted(node.address));
  if (node.cpus > 0) text += fmt::format("cpus: {}\n", node.cpus);
  if (node.memory_bytes > 0) text += fmt::format("memory: {}\n", exact_bytes(node.memory_bytes));
  return text + list("devices", node.devices, [](const NodeDevices& held) {
           return fmt::format("{{type: {}, count: {}}}", quoted(held.type), held.count);
         });
}

std::string write_link(const Link& link) {
  return fmt::format("{{from: {}, to: {}, bandwidth: {}, latency: {}{}}}", quoted(link.from), quoted(link.to),
                     exact_bytes_per_second(link.bytes_per_second), exact_seconds(link.latency_seconds),
                     link.emulated ? ", emulated: true" : "");
}

}  // namespace

// Numbers are written with all their digits, so that reading gives the same value.
std::string to_yaml(const Cluster& cluster) {
  return fmt::format("version: {}\n", kVersion) + list("device_types", cluster.device_types, write_device_type) +
         list("nodes", cluster.nodes, write_node) + list("links", cluster.links, write_link) +
         list("workers", cluster.workers, write_worker);
}

}  // namespace motley::cluster
