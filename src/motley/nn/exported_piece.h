// Runs an exported program, or the nodes of it that make one layer of a chain, with libtorch's own operators, so that
// autograd, autocast and devices treat them like those of any other network.
#pragma once

#include <memory>
#include <vector>

#include "motley/nn/exported_program.h"

namespace motley::nn {

// What nodes follow at the time they run.
struct ExportedState {
  bool is_training = true;
  torch::Device device = torch::kCPU;
  torch::Dtype dtype = torch::kFloat32;
};

// How the values of a program depend on each other.
class ExportedFlow {
 public:
  explicit ExportedFlow(const ExportedProgram& program);

  // The value that this one is, or is a view of.
  int root(int value) const { return roots_[static_cast<std::size_t>(value)]; }
  bool is_held(int value) const { return held_[static_cast<std::size_t>(value)] >= 0; }
  // Follows from held tensors and the number of samples: can be computed wherever it is read.
  bool is_free(int value) const { return free_values_[static_cast<std::size_t>(value)]; }
  bool is_free_node(std::size_t node) const { return free_nodes_[node]; }
  // The node that makes it; -1: none.
  int maker(int value) const { return makers_[static_cast<std::size_t>(value)]; }
  int held(int value) const { return held_[static_cast<std::size_t>(value)]; }
  // Free nodes that write into what has this root.
  std::vector<std::size_t> free_writers(int root) const;

 private:
  void find_roots();
  void find_free();

  const ExportedProgram& program_;
  std::vector<int> roots_;
  std::vector<int> held_;
  std::vector<int> makers_;
  std::vector<bool> free_values_;
  std::vector<bool> free_nodes_;
};

// Some nodes of a program as a function of tensors.
class ExportedPiece {
 public:
  // `nodes` in their order, without free ones; those that they need are found here. The number of samples is the first
  // input's first size.
  ExportedPiece(std::shared_ptr<const ExportedProgram> program, const ExportedFlow& flow,
                const std::vector<std::size_t>& nodes, std::vector<int> inputs, std::vector<int> outputs);

  // Throws what libtorch throws.
  std::vector<torch::Tensor> run(const ExportedState& state, const std::vector<torch::Tensor>& inputs) const;

  // The program's held tensors that it reads, in the order of the program.
  const std::vector<int>& held() const { return held_; }

 private:
  struct Step {
    const ExportedNode* node;
    bool updates_held;          // writes into a buffer, which only training does
    std::vector<int> released;  // values that no later step reads
  };
  void run_step(const Step& step, const ExportedState& state, std::vector<c10::IValue>& slots) const;
  c10::IValue resolve(const Operand& operand, const ExportedState& state, const std::vector<c10::IValue>& slots) const;
  const c10::IValue& slot(int value, const std::vector<c10::IValue>& slots) const;
  int make_slot(int value);

  std::shared_ptr<const ExportedProgram> program_;
  std::vector<Step> steps_;
  std::vector<int> inputs_;
  std::vector<int> outputs_;
  std::vector<int> held_;
  std::vector<int> batches_;  // the values that are the number of samples
  std::vector<int> slots_;    // of each value of the program; -1: none
  int slot_count_ = 0;
};

}  // namespace motley::nn
