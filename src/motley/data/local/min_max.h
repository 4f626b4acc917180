// Splits a batch so that the last worker is done as early as possible: the integer min-max problem
//
//     minimise T   subject to   a_i + c_i b_i <= T for every worker with b_i > 0,   sum b_i = B,   lo_i <= b_i <= hi_i.
//
// A worker with b_i = 0 takes no time, so that a worker whose fixed time alone is above T is left out where its minimum
// allows it. The answer is exactly optimal (docs/partition.md has the argument). Pure and deterministic: the same
// numbers give bitwise the same answer in every process.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "motley/base/result.h"

namespace motley::data {

// Seconds that a worker takes for b samples: fixed + per_sample * b. Both finite and not negative.
struct WorkerCost {
  double fixed = 0;
  double per_sample = 0;
  double seconds(std::uint32_t samples) const { return samples == 0 ? 0 : fixed + per_sample * samples; }
};

struct WorkerLimits {
  std::uint32_t minimum = 1;  // 2 where a layer needs it (BatchNorm), 0 to allow none
  std::uint32_t maximum = std::numeric_limits<std::uint32_t>::max();  // what fits into the worker's memory
};

struct MinMaxSplit {
  std::vector<std::uint32_t> shares;
  double seconds = 0;  // of the last worker
  double bound = 0;    // no split, not even one with parts of samples, takes less
};

// Refuses a batch below the sum of the minimums or above that of the maximums, with the sums in the message.
Result<MinMaxSplit> solve_min_max(std::span<const WorkerCost> costs, std::span<const WorkerLimits> limits,
                                  std::uint32_t batch);

// Seconds of the last worker under these shares.
double step_seconds(std::span<const WorkerCost> costs, std::span<const std::uint32_t> shares);

}  // namespace motley::data
