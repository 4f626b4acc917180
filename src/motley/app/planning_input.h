// How planning is asked: which model on which machines by which cost model, and for how long.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/app/documents.h"
#include "motley/base/result.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/search/alternatives.h"
#include "motley/planning/search/planner.h"
#include "motley/serial/options.h"

namespace motley::app {

// A sentence for whoever asked.
using Tell = std::function<void(const std::string&)>;

struct PlanningInput {
  std::string profile;  // a measured or imported profile.json ...
  std::string model;    // ... or a table's name, estimated from the speeds in the cluster file
  std::string cluster;  // "": this machine
  std::string cost_model = "pipeline";
  std::string schedule = "1f1b";
  std::int64_t batch = 256;
  std::int64_t micro_batches = 0;  // 0: whichever is best
  double total_samples = 1e9;
  bool recompute = false;
  int max_layers = 0;             // longer models are merged; 0: only those that are too long for the planners
  double profile_batch_size = 0;  // of a profile that PipeDream wrote; 0: as its layers tell
  Documents documents;            // in place of files

  static const OptionTable<PlanningInput>& options();
};

// The profile that the input names, or the estimate of its model, and the cluster. A profile that is no JSON is one
// that PipeDream wrote (graph.txt), of the cluster's one device type.
struct PlanningData {
  model::Profile profile;
  cluster::Cluster cluster;
};
Result<PlanningData> planning_data(const PlanningInput& input);

// What a model takes on the cluster's device types by the speeds that `file` states for them, at about this batch.
// Errors (kInvalidInput): a type without a speed.
Result<model::Profile> estimate_on(const cluster::Cluster& cluster, const std::string& file, const model::Graph& graph,
                                   std::int64_t batch);

// The problems that differ in the number of micro-batches alone: that of the input, or the powers of two up to
// kMaxMicroBatches. Models with more layers than the input or the planners bear are merged into blocks
// (Problem::merged_from). `warn` is told of that, and of pairs of types between which no link is stated: what is sent
// there costs nothing.
// Errors (kInvalidInput): neither or both of profile and model, an unknown model, a device type without speed,
// and those of the files and of planning::make_problem.
inline constexpr std::int64_t kMaxMicroBatches = 64;
inline constexpr int kMostLayers = 1000;  // into which an input may ask that they are merged
Result<std::vector<planning::Problem>> planning_problems(const PlanningInput& input, const Tell& warn);

struct SearchLimits {
  double seconds = 60;
  std::uint64_t seed = 1;

  static const OptionTable<SearchLimits>& options();
};

// Puts a request to a planner, for whoever shows progress; empty: the planner is asked as it is.
using Ask = std::function<Result<planning::Answer>(const planning::Planner& planner, planning::Request request)>;

// Of problems that differ in the number of micro-batches the one whose plan is best, and that plan, with what is proved
// of all of them. They share the time.
struct Solved {
  const planning::Problem* problem = nullptr;
  planning::Answer answer;
  std::vector<planning::Rival> rivals = {};  // the best plans of the other problems
  std::string refused = {};                  // why the planner takes some of the problems not; empty: it takes all
};
Result<Solved> solve(const planning::Planner& planner, const std::vector<planning::Problem>& problems,
                     const planning::Objective& objective, const SearchLimits& limits, const std::stop_token& stop,
                     const Ask& ask = {});

}  // namespace motley::app
