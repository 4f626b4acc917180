// One stage of a model: the part that one worker computes. Data parallel training has one stage, the whole network; a
// pipeline has several. The seam is explicit values per micro-batch, so that whoever drives it may run micro-batches in
// any order and carry inputs, outputs and their gradients between processes. Workers that compute the same stage keep
// the running statistics of its BatchNorm layers equal.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "motley/base/result.h"
#include "motley/model/graph.h"
#include "motley/nn/runtime.h"

namespace motley::nn {

// A layer whose running statistics follow the data: views of its buffers.
struct BatchNormLayer {
  std::string name;
  torch::Tensor running_mean;         // one value a channel
  torch::Tensor running_var;          // the same
  torch::Tensor num_batches_tracked;  // scalar, int64
  std::optional<double> momentum;     // none: a plain average over all batches
};

// One of the layers that a network applies one after the other. It reads all that the one before returned: mostly one
// value, the first of its batch; several where a value goes around layers. It works on the network's own weights and
// must not outlive it.
struct ChainLayer {
  std::string name;  // unique in its network; a module's is its path, such as "layer1.0"
  model::LayerKind kind = model::LayerKind::kOther;
  std::function<Tensors(const Tensors&)> forward = {};
  NamedTensors parameters = {};          // that it trains; one that several layers share is the first one's
  NamedTensors buffers = {};             // that it keeps besides, such as running statistics
  std::vector<std::string> shared = {};  // names of tensors of layers before it that it reads, too
  // Of a table that parameter servers have; what model::Layer has under these names.
  double lookups = 0;
  double row_bytes = 0;
  double table_rows = 0;
};

// A layer's forward that reads one value and returns one.
inline std::function<Tensors(const Tensors&)> of_one_value(
    std::function<torch::Tensor(const torch::Tensor&)> function) {
  return [function = std::move(function)](const Tensors& inputs) -> Tensors { return {function(inputs.front())}; };
}

// The values, cut off from what they were computed from: where a layer's own backward ends.
Tensors as_leaves(const Tensors& values);

// What a stage runs: one of our networks, or an exported module. Functions may throw what libtorch throws; Stage
// catches it.
class Network {
 public:
  // The shape of one sample of the first input, without the batch dimension; empty where it is not known.
  Network(std::string name, std::vector<std::int64_t> sample_shape)
      : name_(std::move(name)), sample_shape_(std::move(sample_shape)) {}
  virtual ~Network() = default;
  const std::string& name() const { return name_; }
  const std::vector<std::int64_t>& sample_shape() const { return sample_shape_; }

  virtual Tensors forward(const Tensors& inputs) = 0;
  virtual NamedTensors parameters() const = 0;
  virtual NamedTensors buffers() const = 0;
  virtual std::vector<BatchNormLayer> batch_norms() const = 0;
  virtual void train(bool on) = 0;
  virtual void to(torch::Device device, torch::Dtype dtype) = 0;
  // The layers of which forward is made, each reading only what the one before returned; empty where the network is no
  // such chain, or none that can be told from outside.
  virtual std::vector<ChainLayer> chain() { return {}; }

 private:
  std::string name_;
  std::vector<std::int64_t> sample_shape_;
};

struct StageOptions {
  torch::Device device = torch::kCPU;
  torch::Dtype dtype = torch::kFloat32;  // of weights and floating inputs
  bool recompute = false;                // forget activations after forward and compute them again in backward
  bool input_gradients = false;          // backward returns them; a first stage saves their cost
  bool autocast = false;                 // compute in bfloat16 where that is safe
};

// Not thread-safe: one thread at a time. With CUDA, gradient hooks run on autograd's thread while backward blocks.
class Stage {
 public:
  // Moves the network to the device and type; starts in training mode.
  static Result<std::unique_ptr<Stage>> create(std::unique_ptr<Network> network, const StageOptions& options);

  // Outputs of one micro-batch, detached from the computation. In training mode what backward needs is kept under the
  // id, which must be free; in evaluation nothing is kept. Inputs may be anywhere; the first has shape [n, sample...].
  Result<Tensors> forward(std::int64_t micro_batch, const Tensors& inputs);

  // Adds to the parameters' .grad, forgets the micro-batch, and returns the gradients of its inputs (empty without
  // input_gradients; undefined for inputs that are not floating). One gradient an output, of its shape; an undefined
  // one counts as zero. Where it `adds` nothing, the parameters' .grad stays as it is.
  Result<Tensors> backward(std::int64_t micro_batch, const Tensors& output_gradients, bool adds = true);

  // Forgets the kept micro-batches, after a step that was given up; or one that goes no way back.
  void forget() { kept_.clear(); }
  void forget(std::int64_t micro_batch) { kept_.erase(micro_batch); }

  void train(bool on);
  bool is_training() const { return training_; }

  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }
  std::vector<BatchNormLayer> batch_norms() const { return network_->batch_norms(); }

  // Parameters, then buffers: the stage's own tensors, not copies.
  NamedTensors state() const;
  // Copies values in. Names, shapes and types must be exactly those of state(); else nothing is changed.
  Status load_state(const NamedTensors& state);

  std::int64_t parameter_count() const;
  const StageOptions& options() const { return options_; }
  std::string name() const { return network_->name(); }

 private:
  // What a micro-batch leaves for its backward. With recomputation outputs are empty until then.
  struct Kept {
    Tensors inputs;
    Tensors outputs;
    std::optional<RandomState> random;
  };

  Stage(std::unique_ptr<Network> network, const StageOptions& options);
  Status check_sample_shape(const Tensors& inputs) const;
  Tensors run(const Tensors& inputs);

  std::unique_ptr<Network> network_;
  StageOptions options_;
  NamedTensors parameters_;
  NamedTensors buffers_;
  bool training_ = true;
  std::unordered_map<std::int64_t, Kept> kept_;
};

inline bool has_batch_norm(const Stage& stage) {
  return !stage.batch_norms().empty();
}

// BatchNorm among workers: each normalises by the statistics of its own samples, and the running statistics, which
// evaluation uses, are combined so that all workers hold those of all samples.
//
// A layer's running values move as r' = k r + (1 - k) s, where s is the mean (or the unbiased variance) of what the
// worker saw and k = (1 - momentum)^batches. From r and r' follows s, and over workers with n_i samples and N = sum n_i
//
//     mean = sum n_i mean_i / N        var = sum n_i (var_i + mean_i^2) / N - mean^2
//
// so that the offsets between the workers' means are part of the variance. That var_i is unbiased leaves a relative
// difference of at most 1 / (values a channel of the smallest part) from one large batch. The combined statistics enter
// the running values once a step, however many workers and micro-batches it had.
class BatchNormAverage {
 public:
  explicit BatchNormAverage(const Stage& stage);

  // Remembers the running values, which are the same on all workers. Before the first micro-batch of a step.
  void begin_step();

  // Sets the running values to those that are remembered.
  void undo_step();

  // The stage's state without what a step has changed that is begun and not finished.
  NamedTensors before_step(NamedTensors state) const;

  // This worker's part of the sums over all workers, in the same layout everywhere; all zero where it had no samples.
  // After the last micro-batch. `samples` is the worker's number in the step.
  std::vector<double> contribution(double samples) const;

  // Sets the running values from the sum of all workers' contributions: bitwise the same where the sums are.
  void finish_step(std::span<const double> sums);

 private:
  // Of a layer as the step began.
  struct Before {
    std::vector<double> values;  // means, then variances
    double batches = 0;          // num_batches_tracked
  };
  std::vector<BatchNormLayer> layers_;
  std::vector<Before> before_;
  bool is_in_step_ = false;
};

}  // namespace motley::nn
