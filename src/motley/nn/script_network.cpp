// How a module's forward is cut into the layers of a chain, from its program.
//
// A forward method is a list of nodes that read and make values. Constants and attributes of the module can be had
// anywhere; every other value is alive from the node that makes it to the last one that reads it. Between two nodes
// where exactly one value is alive, and is a tensor, the list is cut. A piece that is one call of a submodule with
// submodules of its own is cut further, so that nested torch.nn.Sequential come out flat; one that calls several such
// blocks, as a U-Net does, is cut between them, though several tensors are alive there; every other piece becomes a
// layer.
//
// A piece must not write into its input: that is the output of the layer before, from which backward starts, and
// autograd refuses to write into where it starts. Such a piece is left joined to the one before.
#include "motley/nn/layers.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace motley::nn {
namespace {

namespace jit = torch::jit;
namespace prim = c10::prim;

// What all pieces of one chain share.
struct Chain {
  std::vector<ChainLayer> layers;
  std::map<std::string, int> names;                       // how often each was given
  std::map<const c10::TensorImpl*, std::string> tensors;  // the first name that the module has for each
  std::map<const c10::TensorImpl*, std::size_t> owners;   // the first layer that reads it
};

// An attribute of the module that a method belongs to, found by following prim::GetAttr from self.
struct Attribute {
  std::string path;
  torch::IValue value;
};

class Method {
 public:
  Method(const jit::Module& module, const std::string& name, std::string path)
      : module_(module), path_(std::move(path)), graph_(module.get_method(name).graph()) {}

  // Appends the method's layers; false, and nothing appended, where it cannot be cut into two or more.
  bool append_to(Chain& chain) const {
    if (graph_->inputs().size() != 2 || graph_->outputs().size() != 1 || !is_tensor(graph_->outputs().front())) {
      return false;
    }
    const std::vector<Piece> pieces = cut();
    for (const Piece& piece : pieces) {
      const std::optional<Method> inner = called_by(piece);
      const bool is_cut = inner && inner->append_to(chain);
      if (pieces.size() == 1) return is_cut;
      if (!is_cut) append_layer(piece, chain);
    }
    return !pieces.empty();
  }

 private:
  struct Piece {
    std::vector<jit::Node*> nodes;
    std::vector<jit::Value*> inputs;
    std::vector<jit::Value*> outputs;
  };

  static bool is_tensor(const jit::Value* value) { return value->type()->isSubtypeOf(*c10::TensorType::get()); }
  jit::Value* self() const { return graph_->inputs()[0]; }

  // Can be computed anywhere from self and constants.
  bool is_free(const jit::Value* value) const {
    if (value == self()) return true;
    const jit::Node* node = value->node();
    const auto kind = node->kind();
    const bool copies =
        kind == prim::Constant || kind == prim::GetAttr || kind == prim::ListConstruct || kind == prim::TupleConstruct;
    return copies && std::ranges::all_of(node->inputs(), [&](const jit::Value* input) { return is_free(input); });
  }

  std::optional<Attribute> attribute(const jit::Value* value) const {
    if (value == self()) return Attribute{path_, module_._ivalue()};
    if (value->node()->kind() != prim::GetAttr) return std::nullopt;
    const std::optional<Attribute> owner = attribute(value->node()->input());
    if (!owner) return std::nullopt;
    const std::string& name = value->node()->s(c10::attr::name);
    return Attribute{owner->path.empty() ? name : owner->path + "." + name, owner->value.toObjectRef().getAttr(name)};
  }

  // What a node calls a method of; nothing for other nodes.
  std::optional<Attribute> called_module(const jit::Node* node) const {
    return node->kind() == prim::CallMethod ? attribute(node->input(0)) : std::nullopt;
  }

  // Whether the node writes into this value, as far as its name or the submodule's setting tells.
  bool writes_into(const jit::Node* node, const jit::Value* value) const {
    if (node->kind() == prim::CallMethod) {
      const std::optional<Attribute> called = called_module(node);
      if (!called) return false;
      const jit::Module module(called->value.toObject());
      return module.hasattr("inplace") && module.attr("inplace").isBool() && module.attr("inplace").toBool();
    }
    return !node->inputs().empty() && node->input(0) == value && node->kind().toUnqualString()[0] != '_' &&
           std::string_view(node->kind().toUnqualString()).ends_with('_');
  }

  std::vector<Piece> cut() const {
    std::vector<jit::Node*> nodes;
    std::map<const jit::Node*, int> position;
    for (jit::Node* node : graph_->nodes()) {
      if (!std::ranges::all_of(node->outputs(), [&](const jit::Value* value) { return is_free(value); }) ||
          node->outputs().empty()) {
        position[node] = static_cast<int>(nodes.size());
        nodes.push_back(node);
      }
    }
    // The last node that reads a value; a node in a nested block counts as the one that the block belongs to.
    const auto last_use = [&](const jit::Value* value) {
      int last = -1;
      for (const jit::Use& use : value->uses()) {
        const jit::Node* user = use.user;
        while (user->owningBlock() != graph_->block()) {
          user = user->owningBlock()->owningNode();
        }
        const auto found = position.find(user);
        last = std::max(last, found == position.end() ? static_cast<int>(nodes.size()) : found->second);
      }
      return last;
    };

    // What is alive after each node, in the order in which it was made.
    std::vector<std::vector<jit::Value*>> alive;
    std::vector<std::pair<jit::Value*, int>> created = {{graph_->inputs()[1], last_use(graph_->inputs()[1])}};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      for (jit::Value* output : nodes[i]->outputs()) created.emplace_back(output, last_use(output));
      std::erase_if(created, [&](const auto& item) { return item.second <= static_cast<int>(i); });
      alive.emplace_back();
      for (const auto& item : created) alive.back().push_back(item.first);
    }

    std::vector<std::size_t> ends = ends_of_one_value(nodes, alive);
    if (ends.empty() || ends.back() + 1 != nodes.size()) {
      return {};  // what returns its own input is no layer
    }
    add_ends_of_several_values(nodes, alive, ends);
    std::vector<Piece> pieces;
    Piece piece{{}, {graph_->inputs()[1]}, {}};
    for (std::size_t i = 0; const std::size_t end : ends) {
      for (; i <= end; ++i) piece.nodes.push_back(nodes[i]);
      piece.outputs = alive[end];
      pieces.push_back(piece);
      piece = {{}, alive[end], {}};
    }
    return pieces;
  }

  // The nodes after which a single tensor is alive.
  std::vector<std::size_t> ends_of_one_value(const std::vector<jit::Node*>& nodes,
                                             const std::vector<std::vector<jit::Value*>>& alive) const {
    std::vector<std::size_t> ends;
    const jit::Value* passed = graph_->inputs()[1];
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (alive[i].size() != 1 || alive[i].front() == passed || !is_tensor(alive[i].front())) continue;
      if (i + 1 < nodes.size() && writes_into(nodes[i + 1], alive[i].front())) continue;
      passed = alive[i].front();
      ends.push_back(i);
    }
    return ends;
  }

  // Where a piece calls several blocks (submodules that have submodules, or, of a network that would be one layer, that
  // have parameters), it is cut before each but the first, too, if all that is alive there are tensors.
  void add_ends_of_several_values(const std::vector<jit::Node*>& nodes,
                                  const std::vector<std::vector<jit::Value*>>& alive,
                                  std::vector<std::size_t>& ends) const {
    const bool is_integer = path_.empty() && ends.size() == 1;
    const auto is_block = [&](const jit::Node* node) {
      const std::optional<Attribute> called = called_module(node);
      if (!called || called->path == path_) return false;
      const jit::Module module(called->value.toObject());
      return module.children().size() > 0 || (is_integer && module.parameters().size() > 0);
    };
    const auto can_end = [&](std::size_t node) {
      return std::ranges::all_of(alive[node], [&](const jit::Value* value) {
        return is_tensor(value) && std::none_of(nodes.begin() + static_cast<std::ptrdiff_t>(node) + 1, nodes.end(),
                                                [&](const jit::Node* later) { return writes_into(later, value); });
      });
    };
    std::vector<std::size_t> more;
    for (std::size_t begin = 0; const std::size_t end : ends) {
      bool is_first = true;
      for (std::size_t i = begin; i <= end; ++i) {
        if (!is_block(nodes[i])) continue;
        if (!is_first && can_end(i - 1)) more.push_back(i - 1);
        is_first = false;
      }
      begin = end + 1;
    }
    ends.insert(ends.end(), more.begin(), more.end());
    std::ranges::sort(ends);
  }

  // The method that the piece consists of, where its module has submodules.
  std::optional<Method> called_by(const Piece& piece) const {
    const jit::Node* node = piece.nodes.front();
    const std::optional<Attribute> called = called_module(node);
    if (!called || piece.nodes.size() != 1 || node->inputs().size() != 2 || piece.inputs.size() != 1 ||
        piece.outputs.size() != 1) {
      return std::nullopt;
    }
    const jit::Module module(called->value.toObject());
    if (module.children().size() == 0) return std::nullopt;
    return Method(module, node->s(c10::attr::name), called->path);
  }

  // What a node does in a word: the class of the submodule, or the function.
  std::string word(const jit::Node* node) const {
    if (node->kind() == prim::CallMethod) {
      const auto type = node->input(0)->type()->cast<c10::ClassType>();
      return type && type->name() ? type->name()->name() : "call";
    }
    if (node->kind() == prim::CallFunction) {
      return node->input(0)->type()->expectRef<c10::FunctionType>().function()->name();
    }
    std::string name = node->kind().toUnqualString();
    return name.ends_with('_') ? name.substr(0, name.size() - 1) : name;
  }

  std::string name(const Piece& piece) const {
    std::string name;
    for (const jit::Node* node : {piece.nodes.front(), piece.nodes.back()}) {
      const std::optional<Attribute> called = called_module(node);
      std::string own = called ? called->path : path_.empty() ? word(node) : path_ + "." + word(node);
      if (node == piece.nodes.front()) {
        name = std::move(own);
      } else if (own != name) {
        name += ".." + own;
      }
    }
    return name;
  }

  static model::LayerKind find_kind(std::string word) {
    using enum model::LayerKind;
    static constexpr std::pair<const char*, model::LayerKind> kKinds[] = {
        {"embedding", kEmbedding},  {"attention", kAttention}, {"conv", kConvolution},   {"linear", kFullyConnected},
        {"addmm", kFullyConnected}, {"pool", kPooling},        {"norm", kNormalization}, {"lstm", kRecurrent},
        {"gru", kRecurrent},        {"rnn", kRecurrent},       {"elu", kActivation},     {"silu", kActivation},
        {"sigmoid", kActivation},   {"tanh", kActivation},     {"softmax", kActivation}, {"swish", kActivation},
        {"cosine", kSimilarity},    {"dropout", kElementwise}, {"add", kElementwise},    {"mul", kElementwise},
        {"concat", kConcatenation}, {"sequential", kBlock}};
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    for (const auto& [part, kind] : kKinds) {
      if (word.find(part) != std::string::npos) return kind;
    }
    return word == "cat" ? kConcatenation : kOther;
  }

  // The tensors of the module that nodes read, those of called submodules and of nested blocks too.
  void collect(const jit::Node* node, Chain& chain, ChainLayer& layer) const {
    const std::size_t number = chain.layers.size();
    const auto add = [&](const std::string& read_as, const torch::Tensor& tensor) {
      const std::string& name = chain.tensors.emplace(tensor.unsafeGetTensorImpl(), read_as).first->second;
      const auto [owner, is_new] = chain.owners.emplace(tensor.unsafeGetTensorImpl(), number);
      if (is_new) {
        (tensor.requires_grad() ? layer.parameters : layer.buffers).push_back({name, tensor});
      } else if (owner->second != number) {
        layer.shared.push_back(name);
      }
    };
    for (const jit::Value* input : node->inputs()) {
      const std::optional<Attribute> read = attribute(input);
      if (read && read->value.isTensor()) {
        add(read->path, read->value.toTensor());
      } else if (read && read->value.isModule()) {
        const jit::Module called(read->value.toObject());
        const std::string prefix = read->path.empty() ? "" : read->path + ".";
        for (const auto& item : called.named_parameters()) add(prefix + item.name, item.value);
        for (const auto& item : called.named_buffers()) add(prefix + item.name, item.value);
      }
    }
    for (const jit::Block* block : node->blocks()) {
      for (const jit::Node* inner : block->nodes()) collect(inner, chain, layer);
    }
  }

  void append_layer(const Piece& piece, Chain& chain) const {
    ChainLayer layer;
    layer.name = name(piece);
    if (const int given = ++chain.names[layer.name]; given > 1) {
      layer.name += fmt::format("#{}", given);
    }
    const bool has_parts = piece.nodes.size() > 1 || called_by(piece);
    layer.kind = has_parts ? model::LayerKind::kBlock : find_kind(word(piece.nodes.front()));
    for (const jit::Node* node : piece.nodes) collect(node, chain, layer);
    layer.forward = as_function(piece);
    chain.layers.push_back(std::move(layer));
  }

  // The piece as a function of its inputs: a copy of its nodes, and of what they read that can be computed anywhere.
  std::function<Tensors(const Tensors&)> as_function(const Piece& piece) const {
    const auto graph = std::make_shared<jit::Graph>();
    std::map<const jit::Value*, jit::Value*> copies;
    copies[self()] = graph->addInput()->copyMetadata(self());
    for (jit::Value* input : piece.inputs) copies[input] = graph->addInput()->copyMetadata(input);
    std::function<jit::Value*(jit::Value*)> clone_value;
    const auto append = [&](jit::Node* node) {
      const jit::Node* copy = graph->appendNode(graph->createClone(node, clone_value));
      for (std::size_t i = 0; i < node->outputs().size(); ++i) {
        copies[node->outputs()[i]] = const_cast<jit::Value*>(copy->outputs()[i]);
      }
    };
    clone_value = [&](jit::Value* value) {
      if (!copies.contains(value)) append(value->node());  // a free value
      return copies.at(value);
    };
    for (jit::Node* node : piece.nodes) append(node);
    std::vector<jit::Value*> outputs;  // a function has one: a tuple of several
    for (jit::Value* output : piece.outputs) outputs.push_back(copies.at(output));
    graph->registerOutput(outputs.size() == 1 ? outputs.front()
                                              : graph->insertNode(graph->createTuple(outputs))->output());
    return [object = module_._ivalue(),
            function = std::make_shared<jit::GraphFunction>(c10::QualifiedName("layer"), graph, nullptr)](
               const Tensors& inputs) -> Tensors {
      jit::Stack stack = {object};
      stack.insert(stack.end(), inputs.begin(), inputs.end());
      function->run(stack);
      if (!stack.back().isTuple()) return {stack.back().toTensor()};
      Tensors outputs;
      for (const c10::IValue& output : stack.back().toTupleRef().elements()) outputs.push_back(output.toTensor());
      return outputs;
    };
  }

  const jit::Module module_;
  const std::string path_;
  const std::shared_ptr<jit::Graph> graph_;
};

class ScriptNetwork final : public Network {
 public:
  ScriptNetwork(std::string name, std::vector<std::int64_t> sample_shape, jit::Module module)
      : Network(std::move(name), std::move(sample_shape)), module_(std::move(module)) {}

  Tensors forward(const Tensors& inputs) override {
    const torch::IValue output = module_.forward({inputs.begin(), inputs.end()});
    if (output.isTensor()) return {output.toTensor()};
    if (output.isTensorList()) return output.toTensorVector();
    TORCH_CHECK(output.isTuple(), "the module returned a ", output.tagKind(),
                "; accepted: a tensor, or a tuple or list of tensors");
    Tensors outputs;
    for (const torch::IValue& element : output.toTupleRef().elements()) {
      TORCH_CHECK(element.isTensor(), "the module returned a tuple with a ", element.tagKind(),
                  " in it; accepted: tensors only");
      outputs.push_back(element.toTensor());
    }
    return outputs;
  }

  NamedTensors parameters() const override { return tensors(true); }

  // Frozen parameters are part of the state, but not of what is trained.
  NamedTensors buffers() const override { return tensors(false); }

  // A module with the attributes of torch.nn.BatchNorm is one: the class's name is lost in a traced module.
  std::vector<BatchNormLayer> batch_norms() const override {
    std::vector<BatchNormLayer> layers;
    for (const auto& item : module_.named_modules()) {
      const jit::Module& module = item.value;
      if (!module.hasattr("running_mean") || !module.hasattr("running_var") ||
          !module.attr("running_mean").isTensor() || !module.attr("running_var").isTensor()) {
        continue;
      }
      BatchNormLayer layer{
          item.name, module.attr("running_mean").toTensor(), module.attr("running_var").toTensor(), {}, 0.1};
      if (module.hasattr("num_batches_tracked") && module.attr("num_batches_tracked").isTensor()) {
        layer.num_batches_tracked = module.attr("num_batches_tracked").toTensor();
      }
      if (module.hasattr("momentum")) layer.momentum = module.attr("momentum").toOptional<double>();
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  std::vector<ChainLayer> chain() override {
    Chain chain;
    for (const NamedTensors& tensors : {parameters(), buffers()}) {
      for (const auto& [name, tensor] : tensors) chain.tensors.emplace(tensor.unsafeGetTensorImpl(), name);
    }
    Method(module_, "forward", "").append_to(chain);
    return std::move(chain.layers);
  }
  void train(bool on) override { module_.train(on); }
  void to(torch::Device device, torch::Dtype dtype) override { module_.to(device, dtype); }

 private:
  // Those that are trained, or the others. One that the module has in several places is taken by its first name.
  NamedTensors tensors(bool trained) const {
    std::set<const c10::TensorImpl*> seen;
    NamedTensors tensors;
    const auto add = [&](const std::string& name, const torch::Tensor& tensor, bool is_trained) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second && is_trained == trained) tensors.push_back({name, tensor});
    };
    for (const auto& item : module_.named_parameters()) add(item.name, item.value, item.value.requires_grad());
    for (const auto& item : module_.named_buffers()) add(item.name, item.value, false);
    return tensors;
  }

  mutable jit::Module module_;
};

}  // namespace

Result<std::unique_ptr<Network>> load_script_network(const std::filesystem::path& path,
                                                     std::vector<std::int64_t> sample_shape) {
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    return fail(ErrorCode::kInvalidInput, "model.path: there is no file '{}'", path.string());
  }
  MOTLEY_ASSIGN(jit::Module module,
                catch_torch(ErrorCode::kInvalidInput,
                            fmt::format("model.path: '{}' is not a TorchScript module that this libtorch can load "
                                        "(tools/motley-export writes one; a state_dict or a pickled module is not)",
                                        path.string()),
                            [&] { return jit::load(path.string(), torch::kCPU); }));
  jit::setGraphExecutorOptimize(false);
  auto network = std::make_unique<ScriptNetwork>(path.filename().string(), std::move(sample_shape), std::move(module));
  if (network->parameters().empty()) {
    return fail(ErrorCode::kInvalidInput,
                "model.path: the module in '{}' has no parameters to train; was it frozen with torch.jit.freeze?",
                path.string());
  }
  return network;
}

}  // namespace motley::nn
