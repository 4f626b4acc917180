// Profiles that others have written down: read line by line, and what they say of a whole minibatch put into the
// project's own terms.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "motley/base/os/file.h"
#include "motley/base/text.h"
#include "motley/model/profile.h"

namespace motley::model {
namespace {

constexpr std::size_t kMaxImportedBytes = std::size_t{1} << 26;
constexpr double kBytesPerValue = 4;
constexpr double kSecondsPerMillisecond = 1e-3;

struct Node {
  std::string description;
  double forward_ms = 0;
  double backward_ms = 0;
  double activation_bytes = 0;
  double parameter_bytes = 0;
  std::set<int> inputs;
  std::set<int> readers;
};
using Nodes = std::map<int, Node>;  // by the number in the file

// "node12" -> 12
std::optional<int> node_number(std::string_view text) {
  text = trimmed(text);
  const std::optional<int> value = text.starts_with("node") ? parse_number<int>(text.substr(4)) : std::nullopt;
  return value && *value >= 0 ? value : std::nullopt;
}

// "4096.0", or the sum of "[4096.0; 512.0]"
std::optional<double> quantity(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  double sum = 0;
  while (true) {
    const std::size_t end = text.find(';');
    const std::optional<double> value = parse_number<double>(trimmed(text.substr(0, end)));
    if (!value || *value < 0) return std::nullopt;
    sum += *value;
    if (end == std::string_view::npos) return std::isfinite(sum) ? std::optional(sum) : std::nullopt;
    text.remove_prefix(end + 1);
  }
}

// "Conv2d(3, 64, ...)" -> "Conv2d"
std::string operation(std::string_view description) {
  const std::size_t end =
      description.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
  return std::string(description.substr(0, end));
}

LayerKind find_kind(const std::string& operation) {
  using enum LayerKind;
  static const std::vector<std::pair<LayerKind, std::set<std::string>>> kinds = {
      {kConvolution, {"Conv2d"}},
      {kFullyConnected, {"Linear", "Classifier"}},
      {kPooling, {"MaxPool2d", "AvgPool2d"}},
      {kNormalization, {"BatchNorm2d"}},
      {kActivation, {"ReLU", "Dropout"}},
      {kElementwise, {"Add"}},
      {kConcatenation, {"Concat"}},
      {kRecurrent, {"LSTM", "EmuBidirLSTM"}},
      {kAttention, {"RecurrentAttention"}},
      {kEmbedding, {"Embedding"}}};
  const auto found = std::ranges::find_if(kinds, [&](const auto& kind) { return kind.second.contains(operation); });
  return found == kinds.end() ? kOther : found->first;
}

Result<Nodes> parse_lines(std::string_view text, const std::string& name) {
  struct Edge {
    int line, from, to;
  };
  Nodes nodes;
  std::vector<Edge> edges;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (trimmed(line).empty()) continue;
    const auto wrong = [&](const std::string& what) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: {}", name, line_number, what);
    };
    const std::size_t dashes = line.find(" -- ");
    const std::optional<int> node = node_number(line.substr(0, dashes));
    if (dashes == std::string_view::npos || !node) {
      return wrong("accepted are 'nodeN -- description -- numbers' and, indented, 'nodeA -- nodeB'");
    }
    const std::string_view rest = line.substr(dashes + 4);
    if (line.starts_with('\t')) {
      const std::optional<int> to = node_number(rest);
      if (!to || *to == *node) return wrong("an edge goes to another node; accepted is 'nodeA -- nodeB'");
      edges.push_back({line_number, *node, *to});
      continue;
    }
    const std::size_t numbers_begin = rest.find(" -- ");
    if (numbers_begin == std::string_view::npos) {
      return wrong(fmt::format("node {} has no numbers after its description", *node));
    }
    Node read{.description = std::string(trimmed(rest.substr(0, numbers_begin)))};
    std::string_view numbers = rest.substr(numbers_begin + 4);
    numbers = numbers.substr(0, numbers.find(" -- "));  // a stage's number may follow
    for (const auto& [key, member] :
         {std::pair<std::string_view, double Node::*>{"forward_compute_time", &Node::forward_ms},
          {"backward_compute_time", &Node::backward_ms},
          {"activation_size", &Node::activation_bytes},
          {"parameter_size", &Node::parameter_bytes}}) {
      const std::size_t comma = numbers.find(',');
      const std::string_view field = trimmed(numbers.substr(0, comma));
      numbers.remove_prefix(comma == std::string_view::npos ? numbers.size() : comma + 1);
      const bool is_named = field.starts_with(key) && field.substr(key.size()).starts_with('=');
      const std::optional<double> value = is_named ? quantity(field.substr(key.size() + 1)) : std::nullopt;
      if (!value) {
        return wrong(fmt::format("node {} has '{}'; accepted is '{}=' and a number, 0 or more", *node,
                                 field.substr(0, 80), key));
      }
      read.*member = *value;
    }
    if (!trimmed(numbers).empty()) {
      return wrong(fmt::format("node {} has more numbers than the four that are known", *node));
    }
    if (!nodes.emplace(*node, std::move(read)).second) {
      return wrong(fmt::format("node {} is there twice", *node));
    }
  }
  for (const Edge& edge : edges) {
    if (!nodes.contains(edge.from) || !nodes.contains(edge.to)) {
      return fail(ErrorCode::kInvalidInput, "{}:{}: an edge names node {}, which the file does not have", name,
                  edge.line, nodes.contains(edge.from) ? edge.to : edge.from);
    }
    nodes.at(edge.to).inputs.insert(edge.from);
    nodes.at(edge.from).readers.insert(edge.to);
  }
  return nodes;
}

// Nodes in an order in which every one comes after its inputs; shorter than all nodes where there is a cycle.
std::vector<int> topological_order(const Nodes& nodes) {
  std::map<int, std::size_t> missing;
  std::set<int> ready;
  for (const auto& [id, node] : nodes) {
    missing[id] = node.inputs.size();
    if (node.inputs.empty()) ready.insert(id);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int id = ready.extract(ready.begin()).value();
    order.push_back(id);
    for (const int reader : nodes.at(id).readers) {
      if (--missing[reader] == 0) ready.insert(reader);
    }
  }
  return order;
}

std::optional<double> find_batch(const Nodes& nodes) {
  constexpr std::string_view kKey = "out_features=";
  for (const auto& [id, node] : nodes) {
    const std::size_t at = node.description.find(kKey);
    if (operation(node.description) != "Linear" || at == std::string::npos) continue;
    const std::string_view rest = std::string_view(node.description).substr(at + kKey.size());
    const std::optional<int> features = parse_number<int>(rest.substr(0, rest.find_first_not_of("0123456789")));
    if (features && *features > 0 && node.activation_bytes > 0) {
      return node.activation_bytes / (*features * kBytesPerValue);
    }
  }
  return std::nullopt;
}

bool is_input(const Node& node) {
  return node.description.starts_with("Input") && node.inputs.empty();
}

// Whether an input node needs no layer of its own: nothing would be lost when its readers read the model's input.
bool is_models_input(const Nodes& nodes, const Node& node) {
  const auto reads_inputs_alone = [&](int reader) {
    return std::ranges::all_of(nodes.at(reader).inputs, [&](int input) { return is_input(nodes.at(input)); });
  };
  return is_input(node) && (node.activation_bytes == 0 || std::ranges::all_of(node.readers, reads_inputs_alone));
}

}  // namespace

Result<Profile> read_pipedream(const std::filesystem::path& file, double batch, const std::string& type) {
  MOTLEY_ASSIGN(const std::string text, read_file(file, kMaxImportedBytes));
  return parse_pipedream(text, file.string(), batch, type);
}

Result<Profile> parse_pipedream(std::string_view text, const std::string& name, double batch, const std::string& type) {
  MOTLEY_ASSIGN(const Nodes nodes, parse_lines(text, name));
  const std::vector<int> order = topological_order(nodes);
  if (order.size() < nodes.size()) {
    const auto stuck = std::ranges::find_if(
        nodes, [&](const auto& item) { return std::ranges::find(order, item.first) == order.end(); });
    return fail(ErrorCode::kInvalidInput, "{}: the edges make a cycle, which node {} is in or comes after", name,
                stuck->first);
  }
  if (batch == 0) {
    const std::optional<double> found_batch = find_batch(nodes);
    if (!found_batch) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: no layer 'Linear(... out_features=N ...)' tells the minibatch; give the number of samples",
                  name);
    }
    batch = *found_batch;
  }
  if (!std::isfinite(batch) || batch < 1) {
    return fail(ErrorCode::kInvalidInput, "{}: minibatch is {}; accepted is a finite number, 1 or more", name, batch);
  }

  Profile profile{.batch = batch};
  profile.graph.name = std::filesystem::path(name).stem().string();
  profile.graph.source = fmt::format("PipeDream's profile, made with minibatches of {:g}", batch);
  DeviceProfile device{
      .type = type,
      .origin = Origin::kPublished,
      .rule = fmt::format("PipeDream's times of one minibatch of {:g}, taken as proportional to it", batch),
      .fractions_origin = Origin::kScaled,
      .fractions_rule = "assumed: everything is divided"};
  std::map<int, int> layer_of;
  for (const int id : order) {
    const Node& node = nodes.at(id);
    if (is_input(node)) profile.graph.input_bytes += node.activation_bytes / batch;
    if (is_models_input(nodes, node)) continue;
    Layer layer{.name = fmt::format("node{} {}", id, operation(node.description)),
                .kind = is_input(node) ? LayerKind::kInput : find_kind(operation(node.description)),
                .parameters = node.parameter_bytes / kBytesPerValue,
                .activation_bytes = node.activation_bytes / batch};
    for (const int input : node.inputs) {
      if (const auto found = layer_of.find(input); found != layer_of.end()) layer.inputs.push_back(found->second);
    }
    layer_of[id] = static_cast<int>(profile.graph.layers.size());
    profile.graph.layers.push_back(std::move(layer));
    const double forward = is_input(node) ? 0 : node.forward_ms * kSecondsPerMillisecond;
    const double backward = is_input(node) ? 0 : node.backward_ms * kSecondsPerMillisecond;
    device.layers.push_back({.forward = {0, forward / batch},
                             .backward = {0, backward / batch},
                             .measurements = {{batch, forward, backward, 0}}});
  }
  profile.devices.push_back(std::move(device));
  if (const Status status = validate(profile.graph); !status) return fail(status.error().within(name));
  return profile;
}

}  // namespace motley::model
