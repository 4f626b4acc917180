// How long a step takes on a machine that is only imagined, and when this machine is too busy to imagine it honestly.
// Pure: the same arguments give the same seconds on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"

namespace motley::cluster {

// Seconds added to a step. Draws below zero count as zero.
struct Delay {
  enum class Kind { kFixed, kUniform, kNormal, kExponential, kGamma, kBernoulli };
  Kind kind = Kind::kFixed;
  double seconds = 0;      // fixed: the delay; bernoulli: the delay when it strikes; else the mean
  double deviation = 0;    // standard deviation, of uniform, normal and gamma
  double probability = 0;  // bernoulli: that it strikes in a step

  bool operator==(const Delay&) const = default;
};

// From step `from_step` on; what is not given stays as it was.
struct SpeedChange {
  std::int64_t from_step = 0;
  std::optional<double> seconds_per_sample;
  std::optional<Delay> delay;

  bool operator==(const SpeedChange&) const = default;
};

// An emulated worker's pace: a step of b > 0 samples takes seconds_per_sample * b + delay.
struct Emulation {
  double seconds_per_sample = 0;  // > 0
  Delay delay;
  std::vector<SpeedChange> changes;  // by growing from_step

  bool operator==(const Emulation&) const = default;
};

// The seconds that `step` shall take on worker `rank` with this many samples; none for no samples. Random delays are
// drawn from Random(mix({seed, rank, step})), so they do not depend on what was asked before.
double emulated_seconds(const Emulation& emulation, std::uint64_t step, std::int64_t samples, std::uint64_t seed,
                        int rank);

// What a worker really did in a step (or the mean over several).
struct WorkerLoad {
  std::string name;
  double cpu_seconds = 0;                  // of all its threads
  std::optional<double> emulated_seconds;  // the deadline it sleeps to; none where it is not emulated
};

// Refuses to go on where sleeping would no longer behave like the slower machine: a worker's own CPU time exceeds its
// deadline, or all of them together exceed half of cores * step_seconds. kUnavailable, saying who and by how much.
// Succeeds where no worker is emulated.
Status check_emulation(std::span<const WorkerLoad> loads, int cores, double step_seconds);

}  // namespace motley::cluster
