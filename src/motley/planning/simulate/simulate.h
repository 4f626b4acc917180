// A plan replayed event by event: the timeline that it should have, with heterogeneous replicas, stragglers, jitter and
// shared links, where the cost model has only a step's time.
//
// A step cuts the batch into micro-batches of u samples. Every replica of a stage computes its share of each, one
// micro-batch at a time, in the order that the schedule gives its stage, as soon as its own work before and its inputs
// allow; a stage is done with a micro-batch when its slowest replica is. Then the activations go to the next stage, or
// the gradients to the one before. In a stage's last backward its replicas exchange the gradient of each layer as soon
// as those after it are done. Computation, transfers and exchange take what docs/explanation/cost-models.md says,
// replicas of several types being bound by the slowest link among them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/planning/cost/evaluation.h"

namespace motley::planning {

// kGradientSync: what is left of it after the stage's last backward. kUpdate: of the weights, after that.
enum class Work { kForward, kBackward, kSendForward, kSendBackward, kGradientSync, kUpdate };
const char* to_string(Work work);  // "forward", "backward", "send-forward", "send-backward", "gradient-sync", "update"

// One thing that one resource does without a break.
struct Event {
  Work work = Work::kForward;
  int stage = 0;                  // of a transfer: the sender
  int replica = 0;                // of the stage, counted over all its types; -1 for transfers
  std::int32_t micro_batch = -1;  // -1 for kGradientSync and kUpdate
  double start = 0;               // seconds from the step's begin
  double end = 0;
};

struct Device {
  int stage = 0;
  int replica = 0;
  std::string type;
  double busy_seconds = 0;     // computing
  double bubble_fraction = 0;  // of the step
};

// A device that is slower than its profile throughout the step.
struct Straggler {
  int stage = 0;
  int replica = 0;
  double slowdown = 1;  // >= 1
};

struct Options {
  std::vector<Straggler> stragglers;
  // A link, in each direction, carries one transfer at a time; those that are ready meanwhile wait in the order in
  // which they became so. Every stage has its own to its neighbours, as in the cost model. Shared: all stages between
  // the same two types have one, as where all devices of a type are behind one network interface; of several types,
  // those whose link is the bottleneck.
  bool shared_links = false;
  bool gradient_sync_overlaps = true;  // as in the cost model; false: begins when the last backward is done
  double jitter = 0;                   // relative standard deviation of computation times (log-normal, mean 1)
  std::uint64_t seed = 0;
  bool keep_events = true;  // false: only the sums
};

// Seconds along a path of events each of which begins when the one before it ends.
struct Path {
  double forward = 0;
  double backward = 0;
  double transfer = 0;
  double gradient_sync = 0;
  double update = 0;
};

struct Timeline {
  double step_seconds = 0;
  Path critical;                      // a path that lasts the whole step: where its time goes
  double communication_seconds = 0;   // of the critical path: transfer and exchange
  double communication_fraction = 0;  // that part of the step
  std::vector<Event> events;          // by start
  std::vector<Device> devices;        // by stage and replica
  std::int64_t event_count = 0;
};

// Above this many, a step is refused.
inline constexpr std::int64_t kMaxEvents = 50'000'000;

// The batch, micro-batches and schedule are the plan's. Errors (kInvalidInput): a plan that does not fit the problem
// (layers, types), more replicas than a micro-batch has samples, a straggler that the plan does not have, times that
// are not finite, more than kMaxEvents events.
Result<Timeline> simulate(const Problem& problem, const Plan& plan, const Options& options = {});

// Chrome trace format ("traceEvents"), a process a stage, a thread a replica. Opens in chrome://tracing and Perfetto.
std::string to_chrome_trace(const Timeline& timeline, const Plan& plan);

// What a planned run was meant to be: its plan and, where the run's folder has what the plan was made from, the step
// replayed event by event.
struct PredictedStep {
  Plan plan;
  std::optional<Timeline> timeline;
  std::string why_not;  // there is no timeline
};

// The files' names within the folder; empty: there is none. Without a cluster file no link is taken to cost anything.
// Errors are those of files that cannot be read; a profile that does not fit the plan gives no timeline.
struct PredictionFiles {
  std::string plan, profile, cluster;
};
Result<PredictedStep> read_prediction(const std::filesystem::path& folder, const PredictionFiles& files);

}  // namespace motley::planning
