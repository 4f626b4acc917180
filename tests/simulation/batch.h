// Many schedules, one seed after the other, in processes of their own: what a simulated process leaves behind when it
// is killed goes with them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley::simulation {

enum class FailureKind : std::uint8_t {
  kInvariant,   // is broken
  kCrash,       // of a simulated process, and with it of the simulation: the invariant that waits end is broken
  kDoesNotEnd,  // the simulation, in the processor's time that it has
};

struct Failure {
  std::uint64_t seed = 0;
  FailureKind kind = FailureKind::kInvariant;
  std::string text;  // the first invariant that is broken and how, or what has become of the simulation
};

struct BatchResult {
  std::uint64_t schedules = 0;  // that were run
  double seconds = 0;           // of one processor
  std::vector<Failure> failures;
};

struct BatchOptions {
  std::uint64_t first_seed = 1;
  std::uint64_t schedules = 1;
  std::string mutant;         // the guard that is dropped; empty: none
  std::size_t processes = 1;  // at a time
};

// Ends soon after the first failure; of a mutant, soon after the first invariant that is broken.
BatchResult run_batch(const BatchOptions& options);

}  // namespace motley::simulation
