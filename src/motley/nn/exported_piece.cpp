#include "motley/nn/exported_piece.h"

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace motley::nn {
namespace {

using Kind = Operand::Kind;

// An operator that stands outside autocast is run so.
class AutocastPause {
 public:
  AutocastPause(torch::DeviceType type, bool pauses)
      : type_(type), has_begun_(pauses && at::autocast::is_autocast_enabled(type)) {
    if (has_begun_) at::autocast::set_autocast_enabled(type_, false);
  }
  ~AutocastPause() {
    if (has_begun_) at::autocast::set_autocast_enabled(type_, true);
  }
  AutocastPause(const AutocastPause&) = delete;
  AutocastPause& operator=(const AutocastPause&) = delete;

  bool has_begun() const { return has_begun_; }

 private:
  const torch::DeviceType type_;
  const bool has_begun_;
};

// What autocast has made narrower than the weights comes back to their type, which all had when the file was made.
void widen(std::vector<c10::IValue>& stack, torch::Dtype dtype) {
  for (c10::IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == torch::kBFloat16) {
      value = value.toTensor().to(dtype);
    }
  }
}

template <class Function>
void for_each_operand_value(const ExportedNode& node, Function function) {
  for (const Operand& operand : node.operands) {
    for (const int value : operand.values) {
      if (value >= 0) function(value);
    }
  }
}

template <class Function>
void for_each_output(const ExportedNode& node, Function function) {
  for (const std::vector<int>& values : node.outputs) {
    for (const int value : values) {
      if (value >= 0) function(value);
    }
  }
}

}  // namespace

ExportedFlow::ExportedFlow(const ExportedProgram& program)
    : program_(program),
      roots_(program.values.size()),
      held_(program.values.size(), -1),
      makers_(program.values.size(), -1),
      free_values_(program.values.size(), false),
      free_nodes_(program.nodes.size(), false) {
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    held_[static_cast<std::size_t>(program.tensors[i].value)] = static_cast<int>(i);
  }
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    for_each_output(program.nodes[i],
                    [&](int value) { makers_[static_cast<std::size_t>(value)] = static_cast<int>(i); });
  }
  find_roots();
  find_free();
}

void ExportedFlow::find_roots() {
  std::iota(roots_.begin(), roots_.end(), 0);
  for (const ExportedNode& node : program_.nodes) {  // in order, so that what is viewed has its root
    for (const auto& [view, viewed] : node.views) roots_[static_cast<std::size_t>(view)] = root(viewed);
  }
}

void ExportedFlow::find_free() {
  // Into which something is written that does not follow from held tensors and the number of samples. Each round finds
  // more of them, so that the last one finds none.
  std::set<int> spoilt;
  for (bool is_done = false; !is_done;) {
    is_done = true;
    for (std::size_t v = 0; v < program_.values.size(); ++v) {
      free_values_[v] = held_[v] >= 0;
    }
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      const ExportedNode& node = program_.nodes[i];
      bool is_free = !node.is_random;
      bool makes_batch = false;
      for_each_output(node, [&](int value) {
        is_free = is_free && !spoilt.contains(root(value));
        makes_batch = makes_batch || (node.arithmetic != nullptr && program_.is_batch(value));
      });
      for_each_operand_value(node, [&](int value) { is_free = is_free && this->is_free(value); });
      for (const int value : node.written) is_free = is_free && !is_held(root(value));
      free_nodes_[i] = is_free || makes_batch;
      for_each_output(node, [&](int value) { free_values_[static_cast<std::size_t>(value)] = free_nodes_[i]; });
      if (free_nodes_[i]) continue;
      for (const int value : node.written) {
        if (!is_held(root(value)) && spoilt.insert(root(value)).second) is_done = false;
      }
    }
  }
}

std::vector<std::size_t> ExportedFlow::free_writers(int root) const {
  std::vector<std::size_t> writers;
  for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
    if (!free_nodes_[i]) continue;
    const std::vector<int>& written = program_.nodes[i].written;
    if (std::ranges::any_of(written, [&](int value) { return this->root(value) == root; })) writers.push_back(i);
  }
  return writers;
}

ExportedPiece::ExportedPiece(std::shared_ptr<const ExportedProgram> program, const ExportedFlow& flow,
                             const std::vector<std::size_t>& nodes, std::vector<int> inputs, std::vector<int> outputs)
    : program_(std::move(program)),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      slots_(program_->values.size(), -1) {
  std::set<std::size_t> steps(nodes.begin(), nodes.end());
  std::set<int> known(inputs_.begin(), inputs_.end());
  std::vector<int> asked = outputs_;
  const auto ask_operands = [&](std::size_t node) {
    for_each_operand_value(program_->nodes[node], [&](int value) { asked.push_back(value); });
  };
  for (const std::size_t node : nodes) {
    for_each_output(program_->nodes[node], [&](int value) { known.insert(value); });
    ask_operands(node);
  }
  for (const int value : inputs_) make_slot(value);
  const std::size_t last = nodes.empty() ? program_->nodes.size() : nodes.back();
  while (!asked.empty()) {
    const int value = asked.back();
    asked.pop_back();
    const bool is_batch = flow.is_free(value) && program_->is_batch(value) && flow.maker(value) >= 0;
    if (is_batch && slots_[static_cast<std::size_t>(value)] < 0) {
      batches_.push_back(value);
      make_slot(value);
    }
    if (is_batch || !known.insert(value).second) continue;
    if (flow.is_held(value)) {
      held_.push_back(flow.held(value));
      make_slot(value);
      continue;
    }
    // A free value: with what is written into it before it is read here.
    TORCH_CHECK(flow.is_free(value) && flow.maker(value) >= 0, "a piece reads '",
                program_->values[static_cast<std::size_t>(value)].name, "', which is not made in it");
    std::vector<std::size_t> needed = {static_cast<std::size_t>(flow.maker(value))};
    for (const std::size_t writer : flow.free_writers(flow.root(value))) {
      if (writer < last) needed.push_back(writer);
    }
    for (const std::size_t node : needed) {
      if (!steps.insert(node).second) continue;
      for_each_output(program_->nodes[node], [&](int output) { known.insert(output); });
      ask_operands(node);
    }
  }
  std::ranges::sort(held_);

  std::map<int, std::size_t> last_use;
  for (const std::size_t number : steps) {
    const ExportedNode& node = program_->nodes[number];
    const bool updates_held =
        std::ranges::any_of(node.written, [&](int value) { return flow.is_held(flow.root(value)); }) &&
        std::ranges::none_of(node.operands, [](const Operand& operand) { return operand.kind == Kind::kTraining; });
    for_each_operand_value(node, [&](int value) { last_use[value] = steps_.size(); });
    for_each_output(node, [&](int value) {
      last_use[value] = steps_.size();
      make_slot(value);
    });
    steps_.push_back({&node, updates_held, {}});
  }
  for (const auto& [value, step] : last_use) {
    if (std::ranges::find(outputs_, value) == outputs_.end()) steps_[step].released.push_back(value);
  }
}

int ExportedPiece::make_slot(int value) {
  int& slot = slots_[static_cast<std::size_t>(value)];
  if (slot < 0) slot = slot_count_++;
  return slot;
}

const c10::IValue& ExportedPiece::slot(int value, const std::vector<c10::IValue>& slots) const {
  const int slot = slots_[static_cast<std::size_t>(value)];
  TORCH_CHECK(slot >= 0, "'", program_->values[static_cast<std::size_t>(value)].name, "' is read before it is made");
  return slots[static_cast<std::size_t>(slot)];
}

c10::IValue ExportedPiece::resolve(const Operand& operand, const ExportedState& state,
                                   const std::vector<c10::IValue>& slots) const {
  switch (operand.kind) {
    case Kind::kConstant:
      return operand.constant;
    case Kind::kValue:
      return slot(operand.values.front(), slots);
    case Kind::kWrapped:
      return at::native::wrapped_scalar_tensor(slot(operand.values.front(), slots).toScalar());
    case Kind::kTensors: {
      c10::List<torch::Tensor> list;
      for (const int value : operand.values) list.push_back(slot(value, slots).toTensor());
      return list;
    }
    case Kind::kOptionalTensors: {
      c10::List<std::optional<torch::Tensor>> list;
      for (const int value : operand.values) {
        list.push_back(value < 0 ? std::nullopt : std::optional(slot(value, slots).toTensor()));
      }
      return list;
    }
    case Kind::kInts: {
      c10::List<std::int64_t> list;
      for (std::size_t i = 0; i < operand.values.size(); ++i) {
        list.push_back(operand.values[i] < 0 ? operand.ints[i] : slot(operand.values[i], slots).toInt());
      }
      return list;
    }
    case Kind::kTraining:
      return state.is_training;
    case Kind::kShareInTraining:
      return state.is_training ? operand.constant : c10::IValue(0.0);
    case Kind::kDtype:
      return static_cast<std::int64_t>(state.dtype);
    case Kind::kDevice:
      return state.device;
    case Kind::kCudnn:
      return at::globalContext().userEnabledCuDNN();
  }
  return {};
}

void ExportedPiece::run_step(const Step& step, const ExportedState& state, std::vector<c10::IValue>& slots) const {
  const ExportedNode& node = *step.node;
  std::vector<c10::IValue> stack;
  if (step.updates_held && !state.is_training) {
    for (std::size_t i = 0; i < node.outputs.size(); ++i) stack.push_back(slot(node.written.front(), slots));
  } else {
    for (const Operand& operand : node.operands) stack.push_back(resolve(operand, state, slots));
    if (node.op) {
      const torch::AutoGradMode mode(torch::GradMode::is_enabled() && !node.region.without_gradients);
      const AutocastPause pause(state.device.type(), node.region.without_autocast);
      if (pause.has_begun() && node.written.empty()) widen(stack, state.dtype);
      node.op->callBoxed(stack);
    } else {
      stack = {node.arithmetic(stack)};
    }
  }
  TORCH_CHECK(stack.size() >= node.outputs.size(), node.word, " returned ", stack.size(), " values");
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const std::vector<int>& values = node.outputs[i];
    if (!node.is_list[i]) {
      if (values.front() >= 0)
        slots[static_cast<std::size_t>(slots_[static_cast<std::size_t>(values.front())])] = stack[i];
      continue;
    }
    const auto list = stack[i].toTensorVector();
    TORCH_CHECK(list.size() == values.size(), node.word, " returned ", list.size(), " tensors; the file says ",
                values.size());
    for (std::size_t j = 0; j < values.size(); ++j) {
      slots[static_cast<std::size_t>(slots_[static_cast<std::size_t>(values[j])])] = list[j];
    }
  }
  for (const int value : step.released) {
    slots[static_cast<std::size_t>(slots_[static_cast<std::size_t>(value)])] = {};
  }
}

std::vector<torch::Tensor> ExportedPiece::run(const ExportedState& state,
                                              const std::vector<torch::Tensor>& inputs) const {
  TORCH_CHECK(inputs.size() == inputs_.size(), "the network takes ", inputs_.size(), " inputs and was given ",
              inputs.size());
  std::vector<c10::IValue> slots(static_cast<std::size_t>(slot_count_));
  const auto set = [&](int value, c10::IValue content) {
    slots[static_cast<std::size_t>(slots_[static_cast<std::size_t>(value)])] = std::move(content);
  };
  for (std::size_t i = 0; i < inputs.size(); ++i) set(inputs_[i], inputs[i]);
  for (const int value : batches_) set(value, inputs.front().size(0));
  for (const int held : held_) {
    const HeldTensor& tensor = program_->tensors[static_cast<std::size_t>(held)];
    set(tensor.value, tensor.tensor);
  }
  for (const Step& step : steps_) run_step(step, state, slots);
  std::vector<torch::Tensor> outputs;
  for (const int value : outputs_) outputs.push_back(slot(value, slots).toTensor());
  return outputs;
}

}  // namespace motley::nn
