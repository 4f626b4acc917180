// What a worker's steps cost, seconds as a line fixed + per_sample * b of its samples: learnt from measured steps, and
// solved for the batch split that makes the last worker finish as early as possible. Pure and deterministic: the same
// numbers give bitwise the same answers in every process.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
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

// Splits a batch so that the last worker is done as early as possible: the integer min-max problem
//
//     minimise T   subject to   a_i + c_i b_i <= T for every worker with b_i > 0,   sum b_i = B,   lo_i <= b_i <= hi_i.
//
// A worker with b_i = 0 takes no time, so that a worker whose fixed time alone is above T is left out where its minimum
// allows it. The answer is exactly optimal (docs/explanation/batch-splitting.md has the argument). Refuses a batch
// below the sum of the minimums or above that of the maximums, with the sums in the message.
Result<MinMaxSplit> solve_min_max(std::span<const WorkerCost> costs, std::span<const WorkerLimits> limits,
                                  std::uint32_t batch);

// Seconds of the last worker under these shares.
double step_seconds(std::span<const WorkerCost> costs, std::span<const std::uint32_t> shares);

// Learns one worker's line from the times of its steps: quickly after a change of speed, and unmoved by noise and
// single stalls.
//
// Times of one share size stand in a group, and the group's median speaks for it. The line is a weighted least-squares
// fit through the medians, newest group first (each older one weighs half), which follows a curved cost near where the
// worker now stands. A weak prior pulls the fixed part to zero: with a single share size the line goes through the
// origin, which overstates the cost of a sample and understates the fixed part, so that a step planned on it goes in
// the right direction and not too far; the next size then gives the true line. Three times in a row that are off on the
// same side are a change: all that was known before is forgotten.
class CostFit {
 public:
  // One step: samples > 0, seconds >= 0 and finite. Returns whether it completed the evidence of a change of speed.
  bool observe(std::uint32_t samples, double seconds);
  void forget() { *this = CostFit(); }

  // The last time was off: one or two more will tell whether that is a stall or a change.
  bool in_doubt() const { return streak_ != 0; }

  bool empty() const { return groups_.empty(); }
  // The present line. Needs an observation.
  const WorkerCost& cost() const { return cost_; }
  // Times seen at this share size since the last change, at most kGroupTimes.
  std::size_t times_at(std::uint32_t samples) const;
  // Standard deviation of a single time, as a part of the time; single stalls count for little.
  double noise() const { return noise_; }
  // Standard error of the time at this share size, seconds: how far the line may be off there by noise alone.
  double standard_error(std::uint32_t samples) const;

  nlohmann::json save() const;
  static CostFit restore(const nlohmann::json& saved);  // throws nlohmann::json::exception on what save() did not write

  static constexpr std::size_t kGroupTimes = 32;
  static constexpr std::size_t kGroups = 6;

 private:
  struct Group {
    std::uint32_t samples = 0;
    std::vector<double> seconds;  // oldest first
    double median = 0;            // of them, kept by add()
    void add(double time, std::size_t keep);
  };
  bool tells_of_change(std::uint32_t samples, double seconds);
  void refit();
  bool drop_stale_group();

  std::vector<Group> groups_;  // newest first
  WorkerCost cost_;
  double noise_ = 0;
  int streak_ = 0;  // times in a row that were off; negative where they were too short
  std::uint32_t streak_samples_ = 0;
  double expected_ = 0;  // seconds at that share size, from before the streak
  double allowed_ = 0;   // and by how much a time may be off
};

}  // namespace motley::data
