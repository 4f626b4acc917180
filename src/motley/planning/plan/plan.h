// A plan: which layers run on which devices, how many of each, and what that is predicted to take and cost (plan.json,
// docs/schema/plan.schema.json). Written by `motley plan`, read by `motley train` and `motley simulate`, editable by
// hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::planning {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How the replicas of a stage agree on their parameters.
enum class GradientSync { kNone, kRing, kParameterServer };
const char* to_string(GradientSync gradient_sync);  // "none", "ring", "parameter-server"

// The order of micro-batches in a step; both are synchronous at its end, so that a step computes what one worker would.
enum class PipelineSchedule { kOneForwardOneBackward, kGPipe };
const char* to_string(PipelineSchedule schedule);  // "1f1b", "gpipe"

// `count` devices of one type, each of which gets `share` of every micro-batch (or of the batch's micro-batches).
struct Replicas {
  std::string type;
  std::int64_t count = 1;
  double share = 1;
  bool operator==(const Replicas&) const = default;
};

struct Stage {
  int first_layer = 0;  // of the model's chain of layers, both included
  int last_layer = 0;
  std::vector<Replicas> replicas;  // shares sum to 1 over count * share
  GradientSync gradient_sync = GradientSync::kNone;
  bool recompute = false;  // forward once more in the backward pass, instead of keeping activations
  bool operator==(const Stage&) const = default;
};

struct Prediction {
  double step_seconds = 0;
  double throughput = 0;        // samples a second
  double hourly_cost = 0;       // of all devices of the plan
  double cost = 0;              // for the job's samples
  double step_seconds_low = 0;  // 9 of 10 draws of the measured times give a step between these; 0: not known
  double step_seconds_high = 0;
  bool operator==(const Prediction&) const = default;
};

// What the plan took where it was run to find out.
struct Measured {
  double step_seconds = 0;  // median
  std::int64_t steps = 1;   // of so many
  bool operator==(const Measured&) const = default;
};

struct Plan {
  std::string model;
  std::vector<std::string> layers;            // names, so that a plan of another model is noticed
  std::optional<int> merged_from = {};        // layers of the model, where those of the plan are merged from more
  std::vector<std::string> parameter_shapes;  // of each layer, so that one of another width is, too; none: not known
  std::int64_t batch = 1;                     // samples of a step
  std::int64_t micro_batches = 1;             // batch is cut into this many
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::vector<Stage> stages;

  std::string cost_model;            // "heterps" or "pipeline"
  std::string method;                // the planner that made it
  std::string objective;             // in words
  Prediction predicted;              // by the cost model
  std::optional<Measured> measured;  // where the plan was chosen by measured steps
  std::optional<double> bound;       // no plan has an objective below this
  std::string bottleneck = {};       // in words
  bool operator==(const Plan&) const = default;
};

// Errors (kInvalidInput; kIo if unreadable): file, field, value, what would be accepted. Checks that the stages cover
// the layers in order without gap or overlap, that counts and shares are possible, and that no key is unknown.
Result<Plan> read_plan(const std::filesystem::path& file);
Result<Plan> parse_plan(std::string_view text, const std::string& name);
std::string to_json(const Plan& plan);  // reads back to an equal value
Status validate(const Plan& plan, const std::string& name);
// docs/schema/plan.schema.json.
std::string plan_schema();

// What a plan is to be best at, and what it must not exceed. Counts and memory of device types are limits of the
// problem (motley/planning/cost/problem.h), not of the objective.
enum class Criterion { kMinCost, kMaxThroughput, kMinStepTime };
struct Objective {
  Criterion criterion = Criterion::kMinCost;
  double min_throughput = 0;  // samples a second
  double max_cost = kInfinity;
  double max_hourly_cost = kInfinity;
};
std::string describe(const Objective& objective);  // "lowest cost with at least 20,000 samples/s"
// Errors (kInvalidInput): a negative or non-finite floor, a cap that is not above 0.
Status validate(const Objective& objective);

// What a stage's devices do one after the other in a step: each micro-batch once forward and once backward.
struct Task {
  bool forward = true;
  std::int64_t micro_batch = 0;  // from 0
  bool operator==(const Task&) const = default;
};

// How many micro-batches the stage takes forward before the first one goes backward, which is how many it holds at
// once: all of them under gpipe, else as many as there are stages from it to the last one, which is what hides the way
// there and back (1F1B of PipeDream: Narayanan et al. 2019, section 3.2).
std::int64_t count_warm_up(PipelineSchedule schedule, std::size_t stage, std::size_t stages,
                           std::int64_t micro_batches);

// The task at a position of the stage's order, 0 to 2 * micro_batches - 1: first `warm_up` forwards, then a backward
// and a forward in turn, and last the backwards that are left. Both kinds come in the order of the micro-batches.
Task task_at(std::int64_t position, std::int64_t warm_up, std::int64_t micro_batches);

}  // namespace motley::planning
