// How an exported program is cut into the layers of a chain, and the network that it is as a whole.
//
// A program is a list of nodes that read and make values. Held tensors, and what follows from them and the number of
// samples alone (position ids, masks), can be had anywhere; every other value is alive from the node that makes it to
// the last one that reads it. Between two nodes where exactly one value is alive, and is a tensor with one entry of its
// first dimension for each sample, the list is cut; but not within one call of a module without submodules, such as
// torch.nn.LayerNorm. A piece that calls several blocks (modules with submodules, or, of a network that would be one
// layer, with parameters), as a U-Net does, is cut between them, though several tensors are alive there. Every piece
// becomes a layer.
//
// A piece must not write into its input: that is the output of the layer before, from which backward starts, and
// autograd refuses to write into where it starts. Such a piece is left joined to the one before.
#include <algorithm>
#include <map>
#include <set>

#include "motley/nn/exported_piece.h"
#include "motley/nn/layers.h"

namespace motley::nn {
namespace {

// The calls of modules that all of some nodes stand in.
using Calls = std::vector<ModuleCall>;

model::LayerKind find_kind(std::string word) {
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

class ChainCutter {
 public:
  ChainCutter(std::shared_ptr<const ExportedProgram> program, const ExportedFlow& flow)
      : program_(std::move(program)), flow_(flow) {
    for (std::size_t i = 0; i < program_->nodes.size(); ++i) {
      if (!flow_.is_free_node(i)) nodes_.push_back(i);
    }
    for (const ExportedNode& node : program_->nodes) {
      for (const ModuleCall& module : node.modules) note_parents(module.path);
    }
    for (const HeldTensor& held : program_->tensors) {
      const std::size_t point = held.name.rfind('.');
      if (point == std::string::npos) continue;
      note_parents(held.name.substr(0, point));
      for (std::size_t end = point; end != std::string::npos && end > 0; end = held.name.rfind('.', end - 1)) {
        with_tensors_.insert(held.name.substr(0, end));
      }
    }
    find_alive();
  }

  struct Piece {
    std::vector<std::size_t> nodes;
    std::vector<int> inputs;
    std::vector<int> outputs;
    std::string name;
    model::LayerKind kind = model::LayerKind::kOther;
  };

  // Empty where there is no place to cut.
  std::vector<Piece> cut() const {
    if (program_->inputs.size() != 1 || program_->outputs.size() != 1 || nodes_.empty()) return {};
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i + 1 < nodes_.size(); ++i) {
      if (alive_[i].size() == 1 && alive_[i].front() != program_->inputs.front() && can_end(i) && !is_within_leaf(i)) {
        ends.push_back(i);
      }
    }
    if (alive_.back() != program_->outputs || flow_.root(program_->outputs[0]) == program_->inputs[0]) return {};
    ends.push_back(nodes_.size() - 1);
    add_ends_of_several_values(ends);
    if (ends.size() < 2) return {};
    std::vector<Piece> pieces;
    std::vector<int> inputs = program_->inputs;
    for (std::size_t begin = 0; const std::size_t end : ends) {
      Piece piece{
          {nodes_.begin() + static_cast<std::ptrdiff_t>(begin), nodes_.begin() + static_cast<std::ptrdiff_t>(end) + 1},
          inputs,
          alive_[end]};
      describe(piece);
      pieces.push_back(std::move(piece));
      inputs = alive_[end];
      begin = end + 1;
    }
    return pieces;
  }

 private:
  const ExportedNode& node(std::size_t position) const { return program_->nodes[nodes_[position]]; }
  const ExportedValue& value(int number) const { return program_->values[static_cast<std::size_t>(number)]; }

  void note_parents(const std::string& path) {
    for (std::size_t point = path.rfind('.'); point != std::string::npos && point > 0;
         point = path.rfind('.', point - 1)) {
      parents_.insert(path.substr(0, point));
    }
  }

  // What is alive after each node, in the order in which it was made.
  void find_alive() {
    std::map<int, std::size_t> last_use;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const Operand& operand : node(i).operands) {
        for (const int read : operand.values) last_use[read] = i;
      }
    }
    for (const int output : program_->outputs) last_use[output] = nodes_.size();
    std::vector<int> created = program_->inputs;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::vector<int>& outputs : node(i).outputs) {
        for (const int output : outputs) {
          if (last_use.contains(output)) created.push_back(output);
        }
      }
      std::erase_if(created, [&](int number) { return !last_use.contains(number) || last_use.at(number) <= i; });
      alive_.push_back(created);
    }
    // What a later node writes into, by the first of the nodes at which it can no longer be handed over.
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const int written : node(i).written) last_written_[flow_.root(written)] = i;
    }
  }

  // Whether all that is alive after the node are tensors that can be handed over: a row for each sample, of real
  // numbers, all of one type, and nothing that is written into later.
  bool can_end(std::size_t position) const {
    return std::ranges::all_of(alive_[position], [&](int number) {
      const ExportedValue& about = value(number);
      const auto written = last_written_.find(flow_.root(number));
      return about.is_tensor() && c10::isFloatingType(*about.dtype) &&
             about.dtype == value(alive_[position].front()).dtype && !about.sizes.empty() &&
             about.sizes.front() == program_->batch &&
             std::none_of(about.sizes.begin() + 1, about.sizes.end(),
                          [&](const std::string& size) { return size.find(program_->batch) != std::string::npos; }) &&
             (written == last_written_.end() || written->second <= position);
    });
  }

  bool is_leaf(const ModuleCall& module) const {
    return std::none_of(program_->nodes.begin(), program_->nodes.end(), [&](const ExportedNode& each) {
      return std::ranges::any_of(each.modules,
                                 [&](const ModuleCall& other) { return other.path.starts_with(module.path + "."); });
    });
  }

  // Whether the node and the next one stand in one call of a module that calls no others.
  bool is_within_leaf(std::size_t position) const {
    const Calls& own = node(position).modules;
    const Calls& next = node(position + 1).modules;
    return !own.empty() && own.size() == next.size() && common(own, next).size() == own.size() && is_leaf(own.back());
  }

  static Calls common(const Calls& one, const Calls& other) {
    const auto [end, unused] = std::mismatch(one.begin(), one.end(), other.begin(), other.end(),
                                             [](const auto& a, const auto& b) { return a.call == b.call; });
    return {one.begin(), end};
  }

  // The calls in which the nodes from `begin` to `end` all stand.
  Calls common_calls(std::size_t begin, std::size_t end) const {
    Calls calls = node(begin).modules;
    for (std::size_t i = begin; i <= end; ++i) calls = common(calls, node(i).modules);
    return calls;
  }

  void add_ends_of_several_values(std::vector<std::size_t>& ends) const {
    const bool is_one_layer = ends.size() == 1;
    std::vector<std::size_t> more;
    for (std::size_t begin = 0; const std::size_t end : ends) {
      const std::size_t depth = common_calls(begin, end).size();
      bool is_first = true;
      const ModuleCall* called = nullptr;
      for (std::size_t i = begin; i <= end; ++i) {
        const ModuleCall* now = node(i).modules.size() > depth ? &node(i).modules[depth] : nullptr;
        const bool is_new = now != nullptr && (called == nullptr || now->call != called->call);
        called = now;
        if (!is_new) continue;
        if (!parents_.contains(now->path) && !(is_one_layer && with_tensors_.contains(now->path))) continue;
        if (!is_first && can_end(i - 1)) more.push_back(i - 1);
        is_first = false;
      }
      begin = end + 1;
    }
    ends.insert(ends.end(), more.begin(), more.end());
    std::ranges::sort(ends);
  }

  static std::string word(const ExportedNode& node) {
    return node.word.ends_with('_') ? node.word.substr(0, node.word.size() - 1) : node.word;
  }

  // A piece that is one call has the module's name; any other the names of its first and last parts.
  void describe(Piece& piece) const {
    const auto& first = program_->nodes[piece.nodes.front()];
    const auto& last = program_->nodes[piece.nodes.back()];
    Calls calls = first.modules;
    for (const std::size_t number : piece.nodes) calls = common(calls, program_->nodes[number].modules);
    if (!calls.empty()) {
      const auto in_call = static_cast<std::size_t>(std::ranges::count_if(nodes_, [&](std::size_t number) {
        return common(calls, program_->nodes[number].modules).size() == calls.size();
      }));
      if (in_call == piece.nodes.size()) {
        // The innermost call that consists of nothing else, but for modules that only call another.
        piece.name = calls.back().path;
        piece.kind = is_leaf(calls.back()) ? find_kind(calls.back().type) : model::LayerKind::kBlock;
        return;
      }
    }
    const auto part = [&](const ExportedNode& each) {
      if (each.modules.size() > calls.size()) return each.modules[calls.size()].path;
      return calls.empty() ? word(each) : calls.back().path + "." + word(each);
    };
    piece.name = part(first);
    if (const std::string other = part(last); other != piece.name) piece.name += ".." + other;
    piece.kind = piece.nodes.size() > 1 ? model::LayerKind::kBlock : find_kind(word(first));
  }

  const std::shared_ptr<const ExportedProgram> program_;
  const ExportedFlow& flow_;
  std::vector<std::size_t> nodes_;  // of the program, without free ones
  std::vector<std::vector<int>> alive_;
  std::map<int, std::size_t> last_written_;  // by root
  std::set<std::string> parents_;            // paths of modules that have submodules
  std::set<std::string> with_tensors_;       // paths of modules that have tensors, their submodules' included
};

class ExportedNetwork final : public Network {
 public:
  ExportedNetwork(std::string name, std::vector<std::int64_t> sample_shape, ExportedProgram program)
      : Network(std::move(name), std::move(sample_shape)),
        program_(std::make_shared<const ExportedProgram>(std::move(program))),
        flow_(*program_),
        state_(std::make_shared<ExportedState>()),
        whole_(program_, flow_, nodes_to_run(), program_->inputs, program_->outputs) {
    state_->dtype = program_->dtype;
    for (const ExportedNode& node : program_->nodes) {
      for (const int value : node.written) written_.insert(flow_.root(value));
    }
  }

  Tensors forward(const Tensors& inputs) override { return whole_.run(*state_, prepared(*program_, written_, inputs)); }
  NamedTensors parameters() const override { return tensors(true); }
  // Frozen parameters are part of the state, but not of what is trained.
  NamedTensors buffers() const override { return tensors(false); }

  std::vector<BatchNormLayer> batch_norms() const override {
    std::vector<BatchNormLayer> layers;
    for (const ExportedNode& node : program_->nodes) {
      const Operand* mean = operand(node, "running_mean");
      const Operand* variance = operand(node, "running_var");
      if (mean == nullptr || variance == nullptr || mean->values.size() != 1 || variance->values.size() != 1 ||
          !flow_.is_held(mean->values[0]) || !flow_.is_held(variance->values[0]) || !follows_training(node)) {
        continue;
      }
      const HeldTensor& held = held_tensor(mean->values[0]);
      const std::string path = held.name.substr(0, std::max<std::size_t>(held.name.rfind('.') + 1, 1) - 1);
      if (std::ranges::any_of(layers, [&](const auto& layer) { return layer.running_mean.is_same(held.tensor); }))
        continue;
      BatchNormLayer layer{path, held.tensor, held_tensor(variance->values[0]).tensor, {}, {}};
      const Operand* momentum = operand(node, "momentum");
      if (momentum != nullptr && momentum->constant.isDouble()) layer.momentum = momentum->constant.toDouble();
      const auto count = std::ranges::find(
          program_->tensors, path.empty() ? "num_batches_tracked" : path + ".num_batches_tracked", &HeldTensor::name);
      // Some have it and never count, as PyTorch's InstanceNorm.
      const bool counts = count != program_->tensors.end() && written_.contains(flow_.root(count->value));
      if (counts) layer.num_batches_tracked = count->tensor;
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  std::vector<ChainLayer> chain() override {
    std::vector<ChainLayer> layers;
    std::map<std::string, int> given;
    std::map<const c10::TensorImpl*, std::size_t> owners;
    std::map<const c10::TensorImpl*, NamedTensor> named;
    for (const bool trained : {true, false}) {
      for (const NamedTensor& tensor : tensors(trained)) named.emplace(tensor.tensor.unsafeGetTensorImpl(), tensor);
    }
    for (const ChainCutter::Piece& piece : ChainCutter(program_, flow_).cut()) {
      ChainLayer layer{piece.name, piece.kind};
      if (const int count = ++given[piece.name]; count > 1) layer.name += fmt::format("#{}", count);
      const ExportedPiece part(program_, flow_, piece.nodes, piece.inputs, piece.outputs);
      for (const int held : part.held()) {
        const HeldTensor& tensor = program_->tensors[static_cast<std::size_t>(held)];
        const c10::TensorImpl* const key = tensor.tensor.unsafeGetTensorImpl();
        const auto found = named.find(key);
        if (found == named.end()) continue;  // a constant
        const auto [owner, is_new] = owners.emplace(key, layers.size());
        if (is_new) {
          (tensor.tensor.requires_grad() ? layer.parameters : layer.buffers).push_back(found->second);
        } else if (owner->second != layers.size()) {
          layer.shared.push_back(found->second.name);
        }
      }
      layer.forward = [part, state = state_, program = program_, written = written_,
                       is_first = layers.empty()](const Tensors& inputs) {
        return part.run(*state, is_first ? prepared(*program, written, inputs) : inputs);
      };
      layers.push_back(std::move(layer));
    }
    return layers;
  }

  void train(bool on) override { state_->is_training = on; }

  void to(torch::Device device, torch::Dtype dtype) override {
    const torch::NoGradGuard no_grad;
    std::set<const c10::TensorImpl*> seen;
    for (const HeldTensor& held : program_->tensors) {
      if (!seen.insert(held.tensor.unsafeGetTensorImpl()).second) continue;
      const torch::Dtype own = held.tensor.is_floating_point() ? dtype : held.tensor.scalar_type();
      torch::Tensor(held.tensor).set_data(held.tensor.detach().to(device, own));
    }
    state_->device = device;
    state_->dtype = dtype;
  }

 private:
  // Inputs as the first nodes read them: ids as integers of the type that the program has for them, and a copy of what
  // it writes into.
  static Tensors prepared(const ExportedProgram& program, const std::set<int>& written, const Tensors& inputs) {
    Tensors prepared = inputs;
    for (std::size_t i = 0; i < std::min(inputs.size(), program.inputs.size()); ++i) {
      const ExportedValue& about = program.values[static_cast<std::size_t>(program.inputs[i])];
      const bool is_floating = c10::isFloatingType(*about.dtype);
      TORCH_CHECK(!is_floating || inputs[i].is_floating_point(), "input '", about.name,
                  "' takes real numbers and was given ", inputs[i].scalar_type());
      if (!is_floating) prepared[i] = inputs[i].to(*about.dtype);
      if (written.contains(program.inputs[i])) prepared[i] = prepared[i].clone();
    }
    return prepared;
  }

  std::vector<std::size_t> nodes_to_run() const {
    std::vector<std::size_t> nodes;
    for (std::size_t i = 0; i < program_->nodes.size(); ++i) {
      if (!flow_.is_free_node(i)) nodes.push_back(i);
    }
    return nodes;
  }

  static const Operand* operand(const ExportedNode& node, const std::string& name) {
    if (!node.op) return nullptr;
    const auto& arguments = node.op->schema().arguments();
    const auto found = std::ranges::find(arguments, name, &c10::Argument::name);
    return found == arguments.end() ? nullptr : &node.operands[static_cast<std::size_t>(found - arguments.begin())];
  }
  static bool follows_training(const ExportedNode& node) {
    return std::ranges::any_of(node.operands,
                               [](const Operand& each) { return each.kind == Operand::Kind::kTraining; });
  }
  const HeldTensor& held_tensor(int value) const {
    return program_->tensors[static_cast<std::size_t>(flow_.held(value))];
  }

  // Those that are trained, or the others. One that the module has in several places is taken by its first name.
  NamedTensors tensors(bool trained) const {
    std::set<const c10::TensorImpl*> seen;
    NamedTensors tensors;
    for (const HeldTensor& held : program_->tensors) {
      if (!held.is_kept || !seen.insert(held.tensor.unsafeGetTensorImpl()).second) continue;
      if (held.is_trained == trained) tensors.push_back({held.name, held.tensor});
    }
    return tensors;
  }

  const std::shared_ptr<const ExportedProgram> program_;
  const ExportedFlow flow_;
  const std::shared_ptr<ExportedState> state_;
  const ExportedPiece whole_;
  std::set<int> written_;  // roots of what the program writes into
};

// The sample's shape as the file has it, where all of it is fixed; else as it is given.
Result<std::vector<std::int64_t>> find_sample_shape(const ExportedProgram& program, const std::filesystem::path& path,
                                                    std::vector<std::int64_t> given) {
  const ExportedValue& input = program.values[static_cast<std::size_t>(program.inputs.front())];
  std::vector<std::int64_t> shape;  // -1: any
  for (std::size_t i = 1; i < input.sizes.size(); ++i) {
    const bool is_fixed = input.sizes[i].find_first_not_of("0123456789") == std::string::npos;
    shape.push_back(is_fixed ? std::stoll(input.sizes[i]) : -1);
  }
  const bool is_whole = std::ranges::find(shape, -1) == shape.end();
  if (given.empty()) return is_whole ? shape : std::vector<std::int64_t>();
  const bool fits = given.size() == shape.size() &&
                    std::ranges::equal(given, shape, [](auto one, auto other) { return other == -1 || one == other; });
  if (fits) return given;
  std::string expected;
  for (const std::int64_t size : shape)
    expected += (expected.empty() ? "" : "x") + (size < 0 ? "?" : std::to_string(size));
  return fail(
      ErrorCode::kInvalidInput,
      "model.input_shape: samples are {}, but the network in '{}' was exported for {}; accepted: that shape, or "
      "the network exported anew with --input",
      format_shape(given), path.string(), expected.empty() ? "single numbers" : expected);
}

}  // namespace

Result<std::unique_ptr<Network>> load_exported_network(const std::filesystem::path& path,
                                                       std::vector<std::int64_t> sample_shape) {
  MOTLEY_ASSIGN(ExportedProgram program, read_exported_program(path));
  MOTLEY_ASSIGN(sample_shape, find_sample_shape(program, path, std::move(sample_shape)));
  return catch_torch(
      ErrorCode::kInvalidInput, fmt::format("model.path: '{}'", path.string()), [&]() -> std::unique_ptr<Network> {
        return std::make_unique<ExportedNetwork>(path.filename().string(), std::move(sample_shape), std::move(program));
      });
}

}  // namespace motley::nn
