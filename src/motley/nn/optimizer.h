// How weights follow gradients: libtorch's optimizers behind names, with their state as named tensors, so that a
// checkpoint can hold it in any order and for any reader; and the learning rate as a pure function of the step, so that
// a resumed run needs nothing but the step's number.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

#include "motley/base/result.h"
#include "motley/nn/runtime.h"

namespace motley::nn {

// The `optimizer` part of a job, without the schedule of the learning rate.
struct OptimizerSpec {
  std::string name = "sgd";  // sgd, adam, adamw
  double learning_rate = 0.01;
  double momentum = 0;      // sgd
  bool nesterov = false;    // sgd, with momentum
  double weight_decay = 0;  // adamw: decoupled from the gradient (Loshchilov, Hutter 2019); else added to it
  double beta1 = 0.9;       // adam, adamw
  double beta2 = 0.999;     // adam, adamw
  double epsilon = 1e-8;    // adam, adamw
};

// An error names the key ("optimizer.momentum") and what would be accepted.
Status check_optimizer(const OptimizerSpec& spec);

// Of its state, those that are as large as the parameters.
int count_state_arrays(const OptimizerSpec& spec);

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The parameters stay their owner's; their order and names must be the same after a resume.
  static Result<std::unique_ptr<Optimizer>> create(const OptimizerSpec& spec, NamedTensors parameters);

  // One update from the parameters' .grad. A learning rate that is the schedule's factor times the spec's.
  virtual Status step(double learning_rate) = 0;

  // "<parameter>.momentum_buffer", "<parameter>.exp_avg", ".exp_avg_sq" and ".step" (int64 scalar), copies; a
  // parameter without an update yet has none.
  virtual NamedTensors state() const = 0;

  // Replaces the state. Unknown names, other shapes or a parameter's state in part are errors and change nothing.
  virtual Status load_state(const NamedTensors& state) = 0;
};

// The Euclidean norm of all gradients together. Fails with kDiverged, naming a parameter, when a gradient is not
// finite. Waits for the device.
Result<double> gradient_norm(const NamedTensors& parameters);

// Whether a network can go on from its weights: kDiverged, naming a parameter, where a value is not finite, or where
// the sum of a parameter's squares is beyond its type, as then the products of weights that a step computes with are no
// numbers. Waits for the device.
Status check_weights(const NamedTensors& parameters);

// Multiplies all gradients.
Status scale_gradients(const NamedTensors& parameters, double factor);

struct ScheduleSpec {
  std::string name = "constant";  // constant, step, cosine
  std::int64_t warmup_steps = 0;  // rises linearly over these steps, to the full rate in the last of them
  std::int64_t step_size = 0;     // step: the rate is multiplied by `factor` after every so many steps
  double factor = 0.1;            // step
  std::int64_t total_steps = 0;   // cosine: the step at which the minimum is reached, warm-up included
  double minimum = 0;             // cosine: the share of the full rate at the end, in [0, 1]
};

// The factor on the learning rate in this step, counted from 0. With s steps after the warm-up of w:
//   step:   factor^floor(s / step_size)
//   cosine: minimum + (1 - minimum) (1 + cos(pi min(1, s / (total_steps - w)))) / 2      (Loshchilov, Hutter 2017)
double learning_rate_factor(const ScheduleSpec& spec, std::int64_t step);

}  // namespace motley::nn
