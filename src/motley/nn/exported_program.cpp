#include "motley/nn/exported_program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/enum_tag.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "motley/nn/runtime.h"
#include "motley/serial/json_fields.h"
#include "motley/serial/json_problem.h"

namespace motley::nn {
namespace {

using Json = nlohmann::json;
using c10::IValue;
using Kind = Operand::Kind;

constexpr int kFormat = 8;        // the major version of torch.export's format
constexpr int kDepthLimit = 200;  // of a graph's JSON, which nests the graphs of torch.no_grad()
constexpr int kStrided = 7;       // the format's number for tensors without a special layout
constexpr std::int64_t kMaxDims = 64;

// What stops the reading; its text goes on from "model.path: '<file>' ".
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem(fmt::format(format, std::forward<Args>(args)...));
}

// --- types

torch::Dtype read_dtype(const Json& json) {
  static const std::map<int, torch::Dtype> kTypes = {
      {1, torch::kUInt8},       {2, torch::kInt8},          {3, torch::kInt16},          {4, torch::kInt32},
      {5, torch::kInt64},       {6, torch::kFloat16},       {7, torch::kFloat32},        {8, torch::kFloat64},
      {9, torch::kComplexHalf}, {10, torch::kComplexFloat}, {11, torch::kComplexDouble}, {12, torch::kBool},
      {13, torch::kBFloat16}};
  const auto found = kTypes.find(json.get<int>());
  if (found == kTypes.end()) refuse("has tensors of type {}, which cannot be run here", json.get<int>());
  return found->second;
}

c10::Layout read_layout(const Json& json) {
  if (json.get<int>() != kStrided) refuse("has sparse tensors; accepted: dense ones");
  return c10::Layout::Strided;
}

c10::MemoryFormat read_memory_format(const Json& json) {
  static const std::map<int, c10::MemoryFormat> kFormats = {{1, c10::MemoryFormat::Contiguous},
                                                            {2, c10::MemoryFormat::ChannelsLast},
                                                            {3, c10::MemoryFormat::ChannelsLast3d},
                                                            {4, c10::MemoryFormat::Preserve}};
  const auto found = kFormats.find(json.get<int>());
  if (found == kFormats.end()) refuse("has an unknown memory format, {}", json.get<int>());
  return found->second;
}

// JSON has no infinities: they are words.
double read_real(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const std::string word = json;
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  refuse("has '{}' for a number", word);
}

bool is_number(const std::string& size) {
  return size.find_first_not_of("0123456789") == std::string::npos;
}

// A number as text, or an expression.
std::string read_size(const Json& json) {
  if (json.contains("as_int")) return std::to_string(json.at("as_int").get<std::int64_t>());
  std::string expression = json.at("as_expr").at("expr_str");
  if (is_number(expression)) refuse("is damaged: a size is '{}'", expression);
  return expression;
}

// What an object of one field, which says the kind of its value, has.
std::pair<std::string, const Json&> read_union(const Json& json) {
  if (!json.is_object() || json.size() != 1)
    refuse("is damaged: {} is no value of one kind", json.dump().substr(0, 80));
  return {json.begin().key(), json.begin().value()};
}

// --- arithmetic on sizes

using Values = std::vector<IValue>;

bool are_integers(const Values& values) {
  return std::ranges::all_of(values, [](const IValue& value) { return value.isInt() || value.isBool(); });
}
std::int64_t as_integer(const IValue& value) {
  return value.isBool() ? static_cast<std::int64_t>(value.toBool()) : value.toInt();
}
double as_real(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(as_integer(value));
}
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by zero");
  return a / b - static_cast<std::int64_t>((a % b != 0) && ((a < 0) != (b < 0)));
}

// Of two operands; with `Integer` where both are integers, else with `Real`.
template <auto Integer, auto Real = Integer>
IValue of_two(const Values& values) {
  TORCH_CHECK(values.size() == 2, "arithmetic on ", values.size(), " sizes");
  if (are_integers(values)) return Integer(as_integer(values[0]), as_integer(values[1]));
  return Real(as_real(values[0]), as_real(values[1]));
}
template <auto Function>
IValue of_one(const Values& values) {
  TORCH_CHECK(values.size() == 1, "arithmetic on ", values.size(), " sizes");
  return Function(values[0]);
}

IValue find_size(const Values& values) {
  TORCH_CHECK(values.size() == 2, "a size has a tensor and a dimension");
  return values[0].toTensor().size(values[1].toInt());
}

using Arithmetic = IValue (*)(const Values&);

// By the names that the format has for them.
const std::map<std::string, Arithmetic>& arithmetic() {
  static const std::map<std::string, Arithmetic> kFunctions = {
      {"torch.ops.aten.sym_size.int", find_size},
      {"_operator.add", of_two<[](auto a, auto b) { return a + b; }>},
      {"_operator.sub", of_two<[](auto a, auto b) { return a - b; }>},
      {"_operator.mul", of_two<[](auto a, auto b) { return a * b; }>},
      {"_operator.floordiv", of_two<floor_divide, [](double a, double b) { return std::floor(a / b); }>},
      {"_operator.mod", of_two<[](std::int64_t a, std::int64_t b) { return a - b * floor_divide(a, b); },
                               [](double a, double b) { return a - b * std::floor(a / b); }>},
      {"_operator.truediv",
       of_two<[](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); },
              [](double a, double b) { return a / b; }>},
      {"_operator.pow", of_two<[](std::int64_t a, std::int64_t b) {
         return static_cast<std::int64_t>(std::llround(std::pow(static_cast<double>(a), static_cast<double>(b))));
       },
                               [](double a, double b) { return std::pow(a, b); }>},
      {"_operator.eq", of_two<[](auto a, auto b) { return a == b; }>},
      {"_operator.ne", of_two<[](auto a, auto b) { return a != b; }>},
      {"_operator.lt", of_two<[](auto a, auto b) { return a < b; }>},
      {"_operator.le", of_two<[](auto a, auto b) { return a <= b; }>},
      {"_operator.gt", of_two<[](auto a, auto b) { return b < a; }>},
      {"_operator.ge", of_two<[](auto a, auto b) { return b <= a; }>},
      {"_operator.and_", of_two<[](std::int64_t a, std::int64_t b) { return a != 0 && b != 0; },
                                [](double a, double b) { return a != 0 && b != 0; }>},
      {"_operator.or_", of_two<[](std::int64_t a, std::int64_t b) { return a != 0 || b != 0; },
                               [](double a, double b) { return a != 0 || b != 0; }>},
      {"_operator.neg",
       of_one<[](const IValue& a) { return a.isDouble() ? IValue(-a.toDouble()) : IValue(-as_integer(a)); }>},
      {"math.floor", of_one<[](const IValue& a) { return static_cast<std::int64_t>(std::floor(as_real(a))); }>},
      {"math.ceil", of_one<[](const IValue& a) { return static_cast<std::int64_t>(std::ceil(as_real(a))); }>},
      {"math.trunc", of_one<[](const IValue& a) { return static_cast<std::int64_t>(std::trunc(as_real(a))); }>},
      {"torch.sym_int", of_one<[](const IValue& a) { return static_cast<std::int64_t>(std::trunc(as_real(a))); }>},
      {"torch.sym_float", of_one<as_real>},
      {"torch.sym_not", of_one<[](const IValue& a) { return as_integer(a) == 0; }>},
      {"torch.sym_max", of_two<[](auto a, auto b) { return std::max(a, b); }>},
      {"torch.sym_min", of_two<[](auto a, auto b) { return std::min(a, b); }>},
      {"torch._sym_sqrt", of_one<[](const IValue& a) { return std::sqrt(as_real(a)); }>},
      {"math.sqrt", of_one<[](const IValue& a) { return std::sqrt(as_real(a)); }>},
  };
  return kFunctions;
}

// --- the archive

class Archive {
 public:
  explicit Archive(const std::filesystem::path& path) : reader_(path.string()) {
    const std::vector<std::string> records = reader_.getAllRecords();
    records_.insert(records.begin(), records.end());
  }

  bool has(const std::string& record) const { return records_.contains(record); }
  const std::set<std::string>& records() const { return records_; }

  c10::Storage storage(const std::string& record) {
    if (!has(record)) refuse("has no record '{}'", record);
    auto [data, size] = reader_.getRecord(record);
    return {c10::Storage::use_byte_size_t(), size, std::move(data), nullptr, /*resizable=*/false};
  }
  std::string text(const std::string& record) {
    const c10::Storage bytes = storage(record);
    return {static_cast<const char*>(bytes.data()), bytes.nbytes()};
  }
  Json json(const std::string& record) {
    WatchedJson watched;
    try {
      watched = parse_watched_json(text(record), kDepthLimit);
    } catch (const Json::exception& problem) {
      refuse("is damaged: '{}' is not JSON: {}", record, explain(problem));
    }
    if (watched.is_too_deep) refuse("nests deeper than {} in '{}'", kDepthLimit, record);
    return std::move(watched.json);
  }

 private:
  caffe2::serialize::PyTorchStreamReader reader_;
  std::set<std::string> records_;
};

// The one model of the archive, by name; what other files are is said by name, too.
std::string find_model(Archive& archive) {
  const auto is_under = [&](std::string_view folder) {
    return std::ranges::any_of(archive.records(),
                               [&](const std::string& record) { return record.starts_with(folder); });
  };
  if (!archive.has("archive_format")) {
    if (is_under("code/")) {
      refuse("is a TorchScript file, which Motley no longer reads; export the module anew: motley export FILE.py:NAME");
    }
    if (archive.has("data.pkl")) refuse("holds pickled tensors and no network; motley export FILE.py:NAME writes one");
    refuse("is a zip file that torch.export has not written; motley export FILE.py:NAME writes one");
  }
  if (const std::string format = archive.text("archive_format"); format != "pt2") {
    refuse("has the format '{}'; accepted: pt2", format.substr(0, 40));
  }
  if (archive.has("byteorder") && archive.text("byteorder") != "little") {
    refuse("was written on a big-endian machine; accepted: little-endian");
  }
  std::vector<std::string> models;
  for (const std::string& record : archive.records()) {
    if (record.starts_with("models/") && record.ends_with(".json"))
      models.push_back(record.substr(7, record.size() - 12));
  }
  if (models.empty()) refuse("holds no exported program (what AOTInductor compiled cannot be trained)");
  if (models.size() > 1) refuse("holds {} models; accepted: one", models.size());
  return models.front();
}

// --- tensors

// Those that a config names, each once for all names of it.
class TensorFolder {
 public:
  TensorFolder(Archive& archive, std::string folder, const std::string& config)
      : archive_(archive), folder_(std::move(folder)) {
    if (archive.has(folder_ + config)) config_ = archive.json(folder_ + config).at("config");
  }

  bool has(const std::string& name) const { return config_.contains(name); }

  // The tensor and whether it is trained.
  std::pair<torch::Tensor, bool> tensor(const std::string& name) {
    const Json& about = config_.at(name);
    if (about.at("use_pickle").get<bool>()) {
      refuse("has '{}' as a Python object; accepted: plain tensors (no subclasses of them)", name);
    }
    const Json& meta = about.at("tensor_meta");
    const torch::Dtype dtype = read_dtype(meta.at("dtype"));
    read_layout(meta.at("layout"));
    const std::vector<std::int64_t> sizes = read_numbers(meta.at("sizes")), strides = read_numbers(meta.at("strides"));
    const std::int64_t offset = meta.at("storage_offset").at("as_int");
    const std::string record = folder_ + about.at("path_name").get<std::string>();
    const bool is_trained = about.at("is_param").get<bool>() && meta.at("requires_grad").get<bool>();
    const auto [known, is_new] = tensors_.try_emplace({record, static_cast<int>(dtype), offset, sizes, strides});
    if (is_new) known->second = read(name, record, dtype, sizes, strides, offset);
    if (is_trained) known->second.requires_grad_();
    return {known->second, is_trained};
  }

 private:
  static std::vector<std::int64_t> read_numbers(const Json& json) {
    if (json.size() > kMaxDims) refuse("has a tensor of {} dimensions", json.size());
    std::vector<std::int64_t> numbers;
    for (const Json& size : json) {
      numbers.push_back(size.at("as_int"));
      if (numbers.back() < 0) refuse("has a tensor with the size {}", numbers.back());
    }
    return numbers;
  }

  torch::Tensor read(const std::string& name, const std::string& record, torch::Dtype dtype,
                     const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                     std::int64_t offset) {
    if (sizes.size() != strides.size() || offset < 0) refuse("is damaged: sizes and strides of '{}'", name);
    const auto options = torch::TensorOptions(dtype);
    if (std::ranges::find(sizes, 0) != sizes.end()) return torch::empty(sizes, options);
    const auto storage = storages_.find(record) == storages_.end()
                             ? storages_.emplace(record, archive_.storage(record)).first
                             : storages_.find(record);
    const auto bytes = static_cast<__int128>(storage->second.nbytes());
    __int128 last = offset;
    const auto width = static_cast<std::int64_t>(c10::elementSize(dtype));
    for (std::size_t i = 0; i <= sizes.size(); ++i) {
      if ((last + 1) * width > bytes) refuse("is damaged: '{}' is longer than its record '{}'", name, record);
      if (i < sizes.size()) last += static_cast<__int128>(sizes[i] - 1) * strides[i];
    }
    const torch::Tensor whole = torch::empty({0}, options).set_(storage->second, offset, sizes, strides);
    // A part of a record gets memory of its own: it is trained by itself.
    return whole.is_contiguous() && whole.numel() * width == bytes ? whole : whole.clone();
  }

  Archive& archive_;
  std::string folder_;
  Json config_ = Json::object();
  std::map<std::string, c10::Storage> storages_;
  std::map<std::tuple<std::string, int, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>,
           torch::Tensor>
      tensors_;
};

// --- the graph

std::string short_type(const std::string& type) {
  const std::size_t point = type.rfind('.');
  return point == std::string::npos ? type : type.substr(point + 1);
}

// "L__self__conv,conv,torch.nn.modules.conv.Conv2d;...", from the outermost in.
std::vector<ModuleCall> read_modules(const std::string& text) {
  std::vector<ModuleCall> modules;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = entry.find(','), second = entry.find(',', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    ModuleCall module{entry.substr(0, first), entry.substr(first + 1, second - first - 1),
                      short_type(entry.substr(second + 1))};
    if (!module.path.empty() && !module.path.starts_with("_empty_nn_module_stack"))
      modules.push_back(std::move(module));
  }
  return modules;
}

// An operator's "torch.ops.aten.conv2d.default" to its names here, {"aten::conv2d", ""}.
std::optional<c10::OperatorName> operator_name(const std::string& target) {
  constexpr std::string_view kPrefix = "torch.ops.";
  if (!target.starts_with(kPrefix)) return std::nullopt;
  const std::string rest = target.substr(kPrefix.size());
  const std::size_t first = rest.find('.'), last = rest.rfind('.');
  if (first == std::string::npos || first == last) return std::nullopt;
  const std::string overload = rest.substr(last + 1);
  return c10::OperatorName(rest.substr(0, first) + "::" + rest.substr(first + 1, last - first - 1),
                           overload == "default" ? "" : overload);
}

// Reads a graph and those within it into the program's nodes and values.
class GraphReader {
 public:
  explicit GraphReader(ExportedProgram& program) : program_(program) {}

  using Names = std::map<std::string, int>;

  int add_value(const Json& graph, Names& names, const std::string& name) {
    ExportedValue value{name};
    if (const auto tensors = graph.find("tensor_values"); tensors != graph.end() && tensors->contains(name)) {
      const Json& meta = tensors->at(name);
      value.dtype = read_dtype(meta.at("dtype"));
      for (const Json& size : meta.at("sizes")) value.sizes.push_back(read_size(size));
    } else if (const auto sizes = graph.find("sym_int_values"); sizes != graph.end() && sizes->contains(name)) {
      value.expression = read_size(sizes->at(name));
    }
    program_.values.push_back(std::move(value));
    const int number = static_cast<int>(program_.values.size()) - 1;
    names[name] = number;
    return number;
  }

  static int find_value(const Names& names, const std::string& name) {
    const auto found = names.find(name);
    if (found == names.end()) refuse("is damaged: '{}' is read and never made", name);
    return found->second;
  }

  void read_nodes(const Json& graph, Names& names, const ExportedRegion& region) {
    for (const Json& node : graph.at("nodes")) {
      const std::string target = node.at("target");
      if (target.starts_with("torch.ops.higher_order.")) {
        read_inner_graph(graph, node, target, names, region);
      } else if (target != "torch.ops.aten._assert_tensor_metadata.default") {  // which holds for the types of the file
        read_node(graph, node, target, names, region);
      }
    }
  }

 private:
  static std::string place(const Json& node) {
    const std::vector<ModuleCall> modules = read_modules(metadata(node));
    return modules.empty() ? "" : fmt::format(" (in '{}', {})", modules.back().path, modules.back().type);
  }
  static std::string metadata(const Json& node) {
    const auto metadata = node.find("metadata");
    return metadata != node.end() ? metadata->value("nn_module_stack", "") : "";
  }

  // torch.no_grad() and a disabled autocast are graphs of their own; their nodes take their place.
  void read_inner_graph(const Json& graph, const Json& node, const std::string& target, Names& names,
                        const ExportedRegion& region) {
    const std::string word = target.substr(target.rfind('.') + 1);
    const Json& inputs = node.at("inputs");
    std::size_t at = 0;
    while (at < inputs.size() && !inputs[at].at("arg").contains("as_graph")) ++at;
    const bool sets_gradients = word == "wrap_with_set_grad_enabled" && at == 1;
    const bool is_autocast = word == "wrap_with_autocast" && at >= 3 && inputs[2].at("arg").contains("as_bool") &&
                             !inputs[2].at("arg").at("as_bool").get<bool>();
    if (at == inputs.size() || (!sets_gradients && !is_autocast)) {
      refuse("uses '{}'{}, which cannot be trained; accepted: operators, without control flow on values", target,
             place(node));
    }
    const Json& inner = inputs[at].at("arg").at("as_graph").at("graph");
    Names inner_names;
    if (inner.at("inputs").size() != inputs.size() - at - 1) refuse("is damaged: the inputs of a graph{}", place(node));
    for (std::size_t i = 0; i < inner.at("inputs").size(); ++i) {
      const std::string name = argument_name(inner.at("inputs")[i]);
      inner_names[name] = find_value(names, argument_name(inputs[at + 1 + i].at("arg")));
    }
    ExportedRegion inner_region = region;
    if (sets_gradients) inner_region.without_gradients = !inputs[0].at("arg").at("as_bool").get<bool>();
    if (is_autocast) inner_region.without_autocast = true;
    read_nodes(inner, inner_names, inner_region);
    std::vector<std::string> results;
    for (const Json& output : node.at("outputs")) {
      if (const auto list = output.find("as_tensors"); list != output.end()) {
        for (const Json& tensor : *list) results.push_back(tensor.at("name"));
      } else {
        results.push_back(argument_name(output));
      }
    }
    if (results.size() != inner.at("outputs").size()) refuse("is damaged: the outputs of a graph{}", place(node));
    for (std::size_t i = 0; i < results.size(); ++i) {
      names[results[i]] = find_value(inner_names, argument_name(inner.at("outputs")[i]));
    }
    (void)graph;
  }

  static std::string argument_name(const Json& argument) {
    for (const char* kind : {"as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool"}) {
      if (const auto found = argument.find(kind); found != argument.end()) {
        return found->contains("name") ? found->at("name") : found->at("as_name");
      }
    }
    refuse("has a graph that takes or returns a {}", read_union(argument).first);
  }

  void read_node(const Json& graph, const Json& json, const std::string& target, Names& names,
                 const ExportedRegion& region) {
    ExportedNode node;
    node.modules = read_modules(metadata(json));
    node.region = region;
    if (const auto found = arithmetic().find(target); found != arithmetic().end()) {
      node.word = target.substr(target.find_last_of('.') + 1);
      node.arithmetic = found->second;
      for (const Json& input : json.at("inputs")) {
        node.operands.push_back(read_operand(input.at("arg"), nullptr, names, target));
      }
    } else {
      const auto name = operator_name(target);
      if (name) node.op = c10::Dispatcher::singleton().findSchema(*name);
      if (!node.op) {
        refuse("uses '{}'{}, which this libtorch does not have; accepted: operators of PyTorch itself", target,
               place(json));
      }
      node.word = name->name.substr(name->name.find("::") + 2);
      read_operands(json, node, names, target);
    }
    read_outputs(graph, json, node, names);
    if (node.op) {
      follow_training(node);
      follow_network(node);
    }
    program_.nodes.push_back(std::move(node));
  }

  void read_operands(const Json& json, ExportedNode& node, const Names& names, const std::string& target) {
    const auto& arguments = node.op->schema().arguments();
    std::vector<const Json*> given(arguments.size());
    for (const Json& input : json.at("inputs")) {
      const std::string name = input.at("name");
      const auto found = std::ranges::find(arguments, name, &c10::Argument::name);
      if (found == arguments.end())
        refuse("gives '{}'{} an argument '{}', which it has not here", target, place(json), name);
      given[static_cast<std::size_t>(found - arguments.begin())] = &input.at("arg");
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (given[i] != nullptr) {
        node.operands.push_back(read_operand(*given[i], &arguments[i], names, target));
      } else if (arguments[i].default_value()) {
        node.operands.push_back({Kind::kConstant, *arguments[i].default_value()});
      } else {
        refuse("gives '{}'{} no argument '{}'", target, place(json), arguments[i].name());
      }
      if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) {
        for (const int value : node.operands.back().values) node.written.push_back(value);
      }
      // Of an embedding: its gradient goes into a bucket, which is dense.
      if (arguments[i].name() == "sparse" && node.operands.back().constant.isBool()) {
        node.operands.back().constant = false;
      }
    }
    node.is_random = node.op->hasTag(at::Tag::nondeterministic_seeded);
  }

  static bool takes_tensor(const c10::Argument* argument) {
    if (argument == nullptr) return false;
    const auto optional = argument->type()->cast<c10::OptionalType>();
    return (optional ? optional->getElementType() : argument->type())->kind() == c10::TypeKind::TensorType;
  }

  // A number where the operator wants a tensor, a list of numbers, or a real one, is one.
  static IValue fitted(const IValue& value, const c10::Argument* argument) {
    if (argument == nullptr) return value;
    if (takes_tensor(argument) && value.isScalar()) return at::native::wrapped_scalar_tensor(value.toScalar());
    c10::TypePtr type = argument->type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (value.isInt() && type->kind() == c10::TypeKind::FloatType) return static_cast<double>(value.toInt());
    if (const auto list = type->cast<c10::ListType>()) {
      const auto count = static_cast<std::size_t>(argument->N().value_or(1));
      if (value.isInt()) return c10::List<std::int64_t>(std::vector<std::int64_t>(count, value.toInt()));
      if (list->getElementType()->kind() == c10::TypeKind::FloatType && value.isIntList()) {
        std::vector<double> reals;
        for (const std::int64_t number : value.toIntVector()) reals.push_back(static_cast<double>(number));
        return c10::List<double>(reals);
      }
    }
    return value;
  }

  static Operand of_constant(const IValue& value, const c10::Argument* argument) {
    return {Kind::kConstant, fitted(value, argument)};
  }

  static Operand read_list(const std::string& kind, const Json& list, const Names& names) {
    Operand operand{kind == "as_tensors"    ? Kind::kTensors
                    : kind == "as_sym_ints" ? Kind::kInts
                                            : Kind::kOptionalTensors};
    for (const Json& element : list) {
      operand.ints.push_back(0);
      if (kind == "as_tensors") {
        operand.values.push_back(find_value(names, element.at("name")));
      } else if (element.contains("as_int")) {
        operand.values.push_back(-1);
        operand.ints.back() = element.at("as_int");
      } else if (element.contains("as_none")) {
        operand.values.push_back(-1);
      } else {
        operand.values.push_back(
            find_value(names, kind == "as_sym_ints" ? element.at("as_name") : element.at("as_tensor").at("name")));
      }
    }
    return operand;
  }

  Operand read_operand(const Json& json, const c10::Argument* argument, const Names& names, const std::string& target) {
    const auto& [kind, value] = read_union(json);
    const auto of = [&](const IValue& constant) { return of_constant(constant, argument); };
    if (kind == "as_none") return {};
    if (kind == "as_tensor") return {Kind::kValue, {}, {find_value(names, value.at("name"))}};
    if (kind == "as_tensors" || kind == "as_optional_tensors" || kind == "as_sym_ints")
      return read_list(kind, value, names);
    if (kind == "as_optional_tensor") {
      if (value.contains("as_none")) return {};
      return {Kind::kValue, {}, {find_value(names, value.at("as_tensor").at("name"))}};
    }
    if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") {
      if (value.contains("as_name")) {
        return {takes_tensor(argument) ? Kind::kWrapped : Kind::kValue, {}, {find_value(names, value.at("as_name"))}};
      }
      if (kind == "as_sym_int") return of(value.at("as_int").get<std::int64_t>());
      if (kind == "as_sym_float") return of(read_real(value.at("as_float")));
      return of(value.at("as_bool").get<bool>());
    }
    if (kind == "as_int") return of(value.get<std::int64_t>());
    if (kind == "as_float") return of(read_real(value));
    if (kind == "as_bool") return of(value.get<bool>());
    if (kind == "as_string") return of(value.get<std::string>());
    if (kind == "as_ints") return of(c10::List<std::int64_t>(value.get<std::vector<std::int64_t>>()));
    if (kind == "as_floats") {
      std::vector<double> reals;
      for (const Json& real : value) reals.push_back(read_real(real));
      return of(c10::List<double>(reals));
    }
    if (kind == "as_bools") {
      c10::List<bool> bools;
      for (const Json& item : value) bools.push_back(item.get<bool>());
      return of(bools);
    }
    if (kind == "as_complex") return of(c10::complex<double>(read_real(value.at("real")), read_real(value.at("imag"))));
    if (kind == "as_scalar_type") {
      const torch::Dtype dtype = read_dtype(value);
      return {dtype == program_.dtype ? Kind::kDtype : Kind::kConstant, static_cast<std::int64_t>(dtype)};
    }
    if (kind == "as_layout") return {Kind::kConstant, static_cast<std::int64_t>(read_layout(value))};
    if (kind == "as_memory_format") return {Kind::kConstant, static_cast<std::int64_t>(read_memory_format(value))};
    if (kind == "as_device") return {Kind::kDevice};
    refuse("gives '{}' an argument of the kind '{}', which cannot be run here", target, kind);
  }

  void read_outputs(const Json& graph, const Json& json, ExportedNode& node, Names& names) {
    for (const Json& output : json.at("outputs")) {
      node.is_list.push_back(output.contains("as_tensors"));
      std::vector<int>& values = node.outputs.emplace_back();
      if (node.is_list.back()) {
        for (const Json& tensor : output.at("as_tensors")) values.push_back(add_value(graph, names, tensor.at("name")));
      } else if (output.contains("as_none") ||
                 (output.contains("as_optional_tensor") && output.at("as_optional_tensor").contains("as_none"))) {
        values.push_back(-1);
      } else if (output.contains("as_optional_tensor")) {
        values.push_back(add_value(graph, names, output.at("as_optional_tensor").at("as_tensor").at("name")));
      } else {
        values.push_back(add_value(graph, names, argument_name(output)));
      }
    }
    if (!node.op) return;
    const auto& returns = node.op->schema().returns();
    if (node.outputs.size() > returns.size())
      refuse("is damaged: '{}' returns {} values", node.word, node.outputs.size());
    // A result is a view of, or the same as, each argument with the same mark in the schema.
    const auto& arguments = node.op->schema().arguments();
    for (std::size_t r = 0; r < node.outputs.size(); ++r) {
      const c10::AliasInfo* alias = returns[r].alias_info();
      if (alias == nullptr) continue;
      for (std::size_t a = 0; a < arguments.size(); ++a) {
        const c10::AliasInfo* own = arguments[a].alias_info();
        if (own == nullptr || (own->beforeSets() != alias->beforeSets() && !own->isWildcardBefore())) continue;
        for (const int viewed : node.operands[a].values) {
          for (const int value : node.outputs[r]) {
            if (value >= 0 && viewed >= 0) node.views.emplace_back(value, viewed);
          }
        }
      }
    }
    name_written_tensor(node, names);
  }

  // What writes into a held tensor returns that: who reads the result reads the tensor, which is there at all times.
  void name_written_tensor(ExportedNode& node, Names& names) const {
    if (node.written.size() != 1 || node.outputs.size() != 1 || node.views.size() != 1) return;
    const auto [result, written] = node.views.front();
    if (written != node.written.front() ||
        std::ranges::find(program_.tensors, written, &HeldTensor::value) == program_.tensors.end()) {
      return;
    }
    names[program_.values[static_cast<std::size_t>(result)].name] = written;
    node.outputs = {{-1}};
    node.views.clear();
  }

  // A module in training mode records that as plain arguments: here they become what the network does at the time.
  static void follow_training(ExportedNode& node) {
    const auto& arguments = node.op->schema().arguments();
    const auto is_given = [&](const char* name) {
      const auto found = std::ranges::find(arguments, name, &c10::Argument::name);
      return found == arguments.end() ||
             node.operands[static_cast<std::size_t>(found - arguments.begin())].kind == Kind::kValue;
    };
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      Operand& operand = node.operands[i];
      const std::string& name = arguments[i].name();
      if (operand.kind != Kind::kConstant) continue;
      const bool is_flag = name == "train" || name == "training" || name == "use_input_stats";
      // Without running statistics a batch is normalised by its own at all times.
      if (is_flag && operand.constant.isBool() && operand.constant.toBool() && is_given("running_mean")) {
        operand.kind = Kind::kTraining;
      } else if (name == "dropout_p" && operand.constant.isDouble()) {
        operand.kind = Kind::kShareInTraining;
      } else if (name == "cudnn_enabled" || name == "cudnn_enable") {
        operand.kind = Kind::kCudnn;
      }
    }
  }

  // What makes tensors out of nothing makes them on the network's device, and, of the file's type of weights, of the
  // network's type.
  void follow_network(ExportedNode& node) const {
    if (std::ranges::any_of(node.operands, [&](const Operand& operand) {
          return std::ranges::any_of(operand.values, [&](int value) {
            return value >= 0 && program_.values[static_cast<std::size_t>(value)].is_tensor();
          });
        })) {
      return;
    }
    if (node.outputs.size() != 1 || node.outputs[0].size() != 1 || node.outputs[0][0] < 0) return;
    const auto& made = program_.values[static_cast<std::size_t>(node.outputs[0][0])];
    const auto& arguments = node.op->schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      Operand& operand = node.operands[i];
      if (operand.kind != Kind::kConstant || !operand.constant.isNone()) continue;
      if (arguments[i].name() == "device") operand.kind = Kind::kDevice;
      if (arguments[i].name() == "dtype" && made.dtype == program_.dtype) operand.kind = Kind::kDtype;
    }
  }

  ExportedProgram& program_;
};

// --- the whole

// The type of the weights, which arguments that name it follow.
torch::Dtype find_dtype(const ExportedProgram& program) {
  for (const HeldTensor& held : program.tensors) {
    if (held.is_trained) return held.tensor.scalar_type();
  }
  return torch::kFloat32;
}

class ProgramReader {
 public:
  explicit ProgramReader(const std::filesystem::path& path)
      : archive_(path),
        model_(find_model(archive_)),
        weights_(archive_, "data/weights/", model_ + "_weights_config.json"),
        constants_(archive_, "data/constants/", model_ + "_constants_config.json") {}

  ExportedProgram read() {
    const Json json = archive_.json("models/" + model_ + ".json");
    const int version = json.at("schema_version").at("major");
    if (version != kFormat) {
      refuse("has version {} of torch.export's format; accepted: {} (PyTorch {} writes it)", version, kFormat,
             MOTLEY_TORCH_VERSION);
    }
    const Json& module = json.at("graph_module");
    const Json& graph = module.at("graph");
    const Json& signature = module.at("signature");
    for (const Json& spec : signature.at("input_specs")) read_input(graph, spec);
    program_.dtype = find_dtype(program_);
    if (program_.inputs.empty()) refuse("takes no input");
    const ExportedValue& first = program_.values[static_cast<std::size_t>(program_.inputs.front())];
    if (first.sizes.empty() || is_number(first.sizes.front())) {
      refuse(
          "was exported for batches of {} only; export it with dynamic_shapes that leave the first dimension of '{}' "
          "free, as motley export does",
          first.sizes.empty() ? "one value" : first.sizes.front() + " samples", first.name);
    }
    program_.batch = first.sizes.front();
    reader_.read_nodes(graph, names_, {});
    if (signature.at("output_specs").size() > graph.at("outputs").size()) refuse("is damaged: its outputs");
    for (const Json& spec : signature.at("output_specs")) read_output(spec);
    if (program_.outputs.empty()) refuse("returns no tensor");
    keep_written_tensors();
    return std::move(program_);
  }

 private:
  void read_input(const Json& graph, const Json& spec) {
    const auto& [kind, about] = read_union(spec);
    if (kind == "user_input") {
      if (!about.at("arg").contains("as_tensor")) refuse("takes an input that is no tensor");
      program_.inputs.push_back(reader_.add_value(graph, names_, about.at("arg").at("as_tensor").at("name")));
    } else if (kind == "parameter" || kind == "buffer" || kind == "tensor_constant") {
      const std::string name = about.at(kind + "_name");
      HeldTensor held;
      held.value = reader_.add_value(graph, names_, about.at("arg").at("name"));
      held.name = name;
      TensorFolder& folder = weights_.has(name) ? weights_ : constants_;
      if (!folder.has(name)) refuse("has no values for '{}'", name);
      std::tie(held.tensor, held.is_trained) = folder.tensor(name);
      held.is_trained = held.is_trained && kind == "parameter";
      held.is_kept = kind == "parameter" || (kind == "buffer" && about.at("persistent").get<bool>());
      program_.tensors.push_back(std::move(held));
    } else if (kind != "constant_input") {
      refuse("takes a '{}', which cannot be run here; accepted: tensors", kind);
    }
  }

  void read_output(const Json& spec) {
    const auto& [kind, about] = read_union(spec);
    if (kind == "user_output") {
      if (!about.at("arg").contains("as_tensor")) refuse("returns something that is no tensor; accepted: tensors");
      program_.outputs.push_back(GraphReader::find_value(names_, about.at("arg").at("as_tensor").at("name")));
    } else if (kind == "buffer_mutation") {
      copy_into_buffer(about.at("buffer_name"), GraphReader::find_value(names_, about.at("arg").at("name")));
    } else {
      refuse("has an output of the kind '{}', which cannot be run here; accepted: tensors that forward returns", kind);
    }
  }

  // A program without writing operators returns a buffer's new values instead.
  void copy_into_buffer(const std::string& name, int value) {
    const auto held = std::ranges::find(program_.tensors, name, &HeldTensor::name);
    if (held == program_.tensors.end()) refuse("is damaged: there is no buffer '{}'", name);
    ExportedNode node;
    node.word = "copy";
    node.op = c10::Dispatcher::singleton().findSchema({"aten::copy_", ""});
    node.operands = {{Kind::kValue, {}, {held->value}}, {Kind::kValue, {}, {value}}, {Kind::kConstant, false}};
    node.written = {held->value};
    node.region.without_gradients = true;
    program_.nodes.push_back(std::move(node));
  }

  // A buffer that is written into is state even where the module would compute it anew.
  void keep_written_tensors() {
    std::map<int, int> roots;
    const auto root = [&](int value) {
      while (roots.contains(value)) value = roots.at(value);
      return value;
    };
    for (const ExportedNode& node : program_.nodes) {
      for (const auto& [view, viewed] : node.views) {
        if (root(viewed) != view) roots[view] = root(viewed);
      }
      for (const int value : node.written) {
        const auto held = std::ranges::find(program_.tensors, root(value), &HeldTensor::value);
        if (held != program_.tensors.end()) held->is_kept = true;
      }
    }
  }

  Archive archive_;
  std::string model_;
  TensorFolder weights_;
  TensorFolder constants_;
  ExportedProgram program_;
  GraphReader reader_{program_};
  GraphReader::Names names_;
};

}  // namespace

Result<ExportedProgram> read_exported_program(const std::filesystem::path& path) {
  const auto failed = [&](const std::string& text) {
    return fail(ErrorCode::kInvalidInput, "model.path: '{}' {}", path.string(), text);
  };
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    return fail(ErrorCode::kInvalidInput, "model.path: there is no file '{}'", path.string());
  }
  try {
    return ProgramReader(path).read();
  } catch (const Problem& problem) {
    return failed(problem.what());
  } catch (const Json::exception& problem) {
    return failed(fmt::format("is damaged: {}", problem.what()));
  } catch (const c10::Error& error) {
    return failed(fmt::format("is not a whole .pt2 file of torch.export, which motley export writes: {}",
                              error.what_without_backtrace()));
  }
}

}  // namespace motley::nn
