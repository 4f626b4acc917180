#include "motley/nn/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace motley::nn {

Status check_schedule(const ScheduleSpec& spec) {
  if (spec.name != "constant" && spec.name != "step" && spec.name != "cosine") {
    return fail(ErrorCode::kInvalidInput, "schedule.name: '{}' is not known; accepted: constant, step, cosine",
                spec.name);
  }
  if (spec.warmup_steps < 0) {
    return fail(ErrorCode::kInvalidInput, "schedule.warmup_steps: {} is not a number of steps; accepted: 0 or more",
                spec.warmup_steps);
  }
  if (spec.name == "step" && spec.step_size < 1) {
    return fail(ErrorCode::kInvalidInput, "schedule.step_size: {} is not a number of steps; accepted: 1 or more",
                spec.step_size);
  }
  if (spec.name == "step" && !(spec.factor > 0 && spec.factor <= 1)) {
    return fail(ErrorCode::kInvalidInput, "schedule.factor: {} is not accepted; accepted: 0 < factor <= 1",
                spec.factor);
  }
  if (spec.name == "cosine" && spec.total_steps <= spec.warmup_steps) {
    return fail(ErrorCode::kInvalidInput, "schedule.total_steps: {} is not accepted; it must exceed warmup_steps ({})",
                spec.total_steps, spec.warmup_steps);
  }
  if (spec.name == "cosine" && !(spec.minimum >= 0 && spec.minimum <= 1)) {
    return fail(ErrorCode::kInvalidInput, "schedule.minimum: {} is not a share; accepted: 0 to 1", spec.minimum);
  }
  return {};
}

double learning_rate_factor(const ScheduleSpec& spec, std::int64_t step) {
  if (step < spec.warmup_steps) {
    return static_cast<double>(step + 1) / static_cast<double>(spec.warmup_steps);
  }
  const std::int64_t since = step - spec.warmup_steps;
  if (spec.name == "step") {
    return std::pow(spec.factor, static_cast<double>(since / spec.step_size));
  }
  if (spec.name == "cosine") {
    const double length = static_cast<double>(spec.total_steps - spec.warmup_steps);
    const double part = std::min(1.0, static_cast<double>(since) / length);
    return spec.minimum + (1 - spec.minimum) * (1 + std::cos(std::numbers::pi * part)) / 2;
  }
  return 1;
}

}  // namespace motley::nn
