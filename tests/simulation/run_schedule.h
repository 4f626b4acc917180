// Runs a job under a schedule until it is done, and says which invariants were broken.
#pragma once

#include <string>
#include <vector>

#include "tests/simulation/schedule.h"

namespace motley::simulation {

struct Outcome {
  std::vector<std::string> violations;
  std::uint64_t trace = 0;  // of all decisions: equal where the same has happened
  std::vector<std::string> notes;
  double seconds = 0;  // simulated
  int generations = 0;
};

Outcome run_schedule(const Schedule& schedule, bool keeps_notes = false);

// The same with the faults that it takes for some violation, each as simple as that allows.
Schedule shrink(const Schedule& schedule);

}  // namespace motley::simulation
