// What a parameter server does to a chunk: the workers' gradients are summed and the optimizer's step is taken, in one
// pass over memory. Pure functions over raw buffers; nothing here does I/O, allocates or takes locks.
//
// All instruction sets give bitwise the same results (a NaN's bits apart): products are rounded, then added in the
// order of the inputs, and nothing is fused. No alignment is needed; 64 bytes is fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "motley/kernels/convert.h"
#include "motley/kernels/instructions.h"

namespace motley::kernels {

enum class UpdateRule { kSum, kSgd, kMomentum, kNesterov, kAdam, kAdamW };

// PyTorch's meaning of every word. Rules ignore what they do not know; kSum ignores all.
struct UpdateOptions {
  UpdateRule rule = UpdateRule::kSum;
  double learning_rate = 0;
  double momentum = 0;      // kMomentum, kNesterov
  double dampening = 0;     // kMomentum, kNesterov; not in the first step
  double weight_decay = 0;  // kAdamW: decoupled from the gradient; else added to it
  double beta1 = 0.9;       // kAdam, kAdamW
  double beta2 = 0.999;     // kAdam, kAdamW
  double epsilon = 1e-8;    // kAdam, kAdamW
  double step = 1;          // steps made once this update is done: 1 for the first whole one
  double fraction = 1;      // above 0: how much of a step this update is (below)
};
// Updates by fractions that add up to one, with equal gradients, together make the step that one update makes: exactly
// (to rounding) for kSgd, kMomentum and kNesterov, and in the state of kAdam and kAdamW; the weights of those move by
// the mean over the step of what they move by at its end, which differs by a share of 1 - beta1 and 1 - beta2 of the
// move. Weight decay that is added to the gradient sees weights that move on the way, a difference of second order in
// learning_rate * weight_decay. docs/explanation/bounded-staleness.md derives the formulas.

// How many arrays of state an optimizer keeps beside the weights: the momentum's buffer; Adam's first and second
// moment. They are zeros before the first step.
constexpr int state_arrays(UpdateRule rule) {
  return rule <= UpdateRule::kSgd ? 0 : rule <= UpdateRule::kNesterov ? 1 : 2;
}

// One worker's values as they came.
struct WireInput {
  const void* values = nullptr;
  WireFormat format = WireFormat::kFloat32;
  const float* scales = nullptr;  // where not null the values are int8 in blocks of kInt8Block (convert.h)
};

// Takes the optimizer's step on weights[] and state[k][], k < state_arrays(rule), with the gradient
//   (sum_i coefficients[i] * inputs[i]) * scale
// of which no more than a block is ever in memory; clipping by a norm goes into the scale. kSum makes the gradient
// itself the weights. The new weights are also written in `wire_format` where `wire_weights` is not null. No input is a
// gradient of zeros. `weights` or `wire_weights` may be the very buffer of an input of the same format; buffers may not
// overlap otherwise.
void fused_update(std::span<const WireInput> inputs, std::span<const float> coefficients, float scale,
                  const UpdateOptions& options, float* weights, float* const* state, void* wire_weights,
                  WireFormat wire_format, std::size_t count, Instructions instructions = best_instructions());

// The same step, which can be taken back, since what was there stays: the new weights and state are written to other
// buffers, past the caches, so that memory moves as many bytes as in place. Returns the sum of the gradient's squares,
// in double precision; all instruction sets add in the same order. No two buffers may overlap.
double fused_update_apart(std::span<const WireInput> inputs, std::span<const float> coefficients, float scale,
                          const UpdateOptions& options, const float* weights, const float* const* state,
                          float* new_weights, float* const* new_state, std::size_t count,
                          Instructions instructions = best_instructions());

}  // namespace motley::kernels
