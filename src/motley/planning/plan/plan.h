// A plan: which layers run on which devices, how many of each, and what that is predicted to take and cost (plan.json,
// docs/schema/plan.schema.json). Written by `motley plan`, read by `motley train` and `motley simulate`, editable by
// hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/result.h"

namespace motley::planning {

// How the replicas of a stage agree on their parameters.
enum class Exchange { kNone, kRing, kParameterServer };
const char* to_string(Exchange exchange);  // "none", "ring", "parameter-server"

// The order of micro-batches in a step; both are flushed at its end, so that a step computes what one worker would.
enum class Schedule { kOneForwardOneBackward, kFillDrain };
const char* to_string(Schedule schedule);  // "1f1b", "fill-drain"

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
  Exchange exchange = Exchange::kNone;
  bool recompute = false;  // forward once more in the backward pass, instead of keeping activations
  bool operator==(const Stage&) const = default;
};

struct Prediction {
  double step_seconds = 0;
  double throughput = 0;      // samples a second
  double price_per_hour = 0;  // of all devices of the plan
  double money = 0;           // for the job's samples
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
  std::vector<std::string> layers;  // names, so that a plan of another model is noticed
  std::int64_t batch = 1;           // samples of a step
  std::int64_t micro_batches = 1;   // batch is cut into this many
  Schedule schedule = Schedule::kOneForwardOneBackward;
  std::vector<Stage> stages;

  std::string cost_model;            // "heterps" or "pipeline"
  std::string method;                // the planner that made it
  std::string objective;             // in words
  Prediction predicted;              // by the cost model
  std::optional<Measured> measured;  // where the plan was chosen by measured steps
  std::optional<double> bound;       // no plan has an objective below this
  bool operator==(const Plan&) const = default;
};

// Errors (kInvalidInput; kIo if unreadable): file, field, value, what would be accepted. Checks that the stages cover
// the layers in order without gap or overlap, that counts and shares are possible, and that no key is unknown.
Result<Plan> read_plan(const std::filesystem::path& file);
Result<Plan> parse_plan(std::string_view text, const std::string& name);
std::string to_json(const Plan& plan);  // reads back to an equal value
Status validate(const Plan& plan, const std::string& name);

}  // namespace motley::planning
