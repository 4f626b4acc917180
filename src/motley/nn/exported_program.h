// A network as torch.export writes it: a graph of operators with their schemas, and the tensors that it starts from.
// What is in a .pt2 file becomes values with numbers and nodes that read and make them, checked so that running it
// needs no names.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::nn {

// What one argument of a node is when the node runs.
struct Operand {
  enum class Kind {
    kConstant,         // `constant`
    kValue,            // the value values[0]
    kWrapped,          // the same, a number that the operator takes as a tensor
    kTensors,          // a list of values
    kOptionalTensors,  // the same, where -1 is no tensor
    kInts,             // a list of integers: of each the value, or, where that is -1, the number
    kTraining,         // whether the network trains
    kShareInTraining,  // `constant` while the network trains, else 0
    kDtype,            // the network's type
    kDevice,           // the network's device
    kCudnn             // whether cuDNN is used
  };
  Kind kind = Kind::kConstant;
  c10::IValue constant = {};
  std::vector<int> values = {};
  std::vector<std::int64_t> ints = {};
};

// A call of a module within which a node was recorded.
struct ModuleCall {
  std::string call;  // names the call: a module that is called twice has two
  std::string path;  // of the module, such as "layer1.0"
  std::string type;  // its class, without the module of Python that has it
};

// What a node stands in.
struct ExportedRegion {
  bool without_gradients = false;  // torch.no_grad()
  bool without_autocast = false;   // torch.autocast(..., enabled=False)
};

struct ExportedNode {
  std::string word;  // what it does, such as "conv2d"
  std::optional<c10::OperatorHandle> op = {};
  c10::IValue (*arithmetic)(const std::vector<c10::IValue>& operands) = nullptr;  // on sizes, where there is no op
  std::vector<Operand> operands = {};
  std::vector<std::vector<int>> outputs = {};  // the values of each result; -1: not used
  std::vector<bool> is_list = {};              // whether the result is a list of tensors
  std::vector<ModuleCall> modules = {};        // from the outermost in, without the network itself
  ExportedRegion region = {};
  bool is_random = false;
  std::vector<int> written = {};                // the values that it writes into
  std::vector<std::pair<int, int>> views = {};  // values that it makes, each with what it is a view of
};

struct ExportedValue {
  std::string name;
  std::optional<torch::Dtype> dtype = {};  // of a tensor
  std::vector<std::string> sizes = {};     // of a tensor: numbers, and expressions of symbols
  std::string expression = {};             // of a size
  bool is_tensor() const { return dtype.has_value(); }
};

// A parameter, a buffer or a constant: what the graph reads and has not made.
struct HeldTensor {
  int value = -1;
  std::string name;
  torch::Tensor tensor;  // one for all names of a tensor that has several
  bool is_trained = false;
  bool is_kept = false;  // part of the state that checkpoints have
};

struct ExportedProgram {
  std::vector<ExportedValue> values;
  std::vector<ExportedNode> nodes;
  std::vector<HeldTensor> tensors;
  std::vector<int> inputs;
  std::vector<int> outputs;
  torch::Dtype dtype = torch::kFloat32;  // of the weights in the file
  std::string batch;                     // the expression of the first input's first size

  bool is_batch(int value) const { return values[static_cast<std::size_t>(value)].expression == batch; }
};

// Reads it onto the CPU. Errors say the file and what in it cannot be run.
Result<ExportedProgram> read_exported_program(const std::filesystem::path& path);

}  // namespace motley::nn
