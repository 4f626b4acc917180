// What a stage's devices do one after the other in a step: each micro-batch once forward and once backward.
#pragma once

#include <cstdint>

#include "motley/planning/plan/plan.h"

namespace motley::planning {

struct Task {
  bool forward = true;
  std::int64_t micro_batch = 0;  // from 0
  bool operator==(const Task&) const = default;
};

// How many micro-batches the stage takes forward before the first one goes backward: all of them under fill-drain, else
// as many as there are stages from it to the last one, which is what hides the way there and back (1F1B of PipeDream:
// Narayanan et al. 2019, section 3.2).
std::int64_t warm_up_of(Schedule schedule, std::size_t stage, std::size_t stages, std::int64_t micro_batches);

// The task at a position of the stage's order, 0 to 2 * micro_batches - 1: first `warm_up` forwards, then a backward
// and a forward in turn, and last the backwards that are left. Both kinds come in the order of the micro-batches.
Task task_at(std::int64_t position, std::int64_t warm_up, std::int64_t micro_batches);

}  // namespace motley::planning
