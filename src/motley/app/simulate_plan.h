// What `motley simulate` does: replays a step of a plan on a described cluster, event by event.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/app/documents.h"
#include "motley/planning/simulate/simulate.h"
#include "motley/serial/options.h"

namespace motley::app {

struct StepQuestion {
  std::string plan;                     // a file
  std::string profile, model, cluster;  // as in PlanningInput
  std::int64_t batch = 0;               // 0: the plan's
  std::int64_t micro_batches = 0;       // likewise
  std::vector<std::string> stragglers;  // STAGE:REPLICA:SLOWDOWN, such as 1:0:1.5
  double jitter = 0;                    // relative standard deviation of computation times
  std::uint64_t seed = 0;               // of the jitter
  bool shared_links = false;            // of all stages between the same two types
  double profile_batch_size = 0;        // as for planning
  bool keep_events = false;             // in the timeline
  Documents documents;                  // in place of files

  static const OptionTable<StepQuestion>& options();  // but for keep_events and documents
};

struct SimulatedStep {
  planning::Plan plan;  // as it was replayed
  planning::Timeline timeline;
};
// Errors: those of the files; kInvalidInput for a straggler that is not understood or not there, and a batch that the
// plan cannot be cut into.
Result<SimulatedStep> simulate_plan(const StepQuestion& question);

// For programs: the step's time and what it consists of, and each device's part.
std::string to_json(const SimulatedStep& step);
// Its JSON Schema, for docs/schema.
std::string step_schema();

}  // namespace motley::app
