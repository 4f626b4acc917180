// Learns one worker's cost a + c b from the times of its steps: quickly after a change of speed, and unmoved by noise
// and single stalls. Pure and deterministic.
//
// Times of one share size stand in a group, and the group's median speaks for it. The line is a weighted least-squares
// fit through the medians, newest group first (each older one weighs half), which follows a curved cost near where the
// worker now stands. A weak prior pulls the fixed part to zero: with a single share size the line goes through the
// origin, which overstates the cost of a sample and understates the fixed part, so that a step planned on it goes in
// the right direction and not too far; the next size then gives the true line. Three times in a row that are off on the
// same side are a change: all that was known before is forgotten.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "motley/data/local/min_max.h"

namespace motley::data {

class CostFit {
 public:
  // One step: samples > 0, seconds >= 0 and finite. Returns whether it completed the evidence of a change of speed.
  bool observe(std::uint32_t samples, double seconds);
  void forget();

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
