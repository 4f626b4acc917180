// A plan that runs, laid out anew over the same workers: which layers and workers every stage should have, in how many
// micro-batches, now that each worker's speed is known by itself. All workers stay in use.
//
// The planners of this module choose among types of devices, all of a type alike, one type a stage. Here every worker
// is a type of its own, and a stage may mix them, each with the share of a micro-batch that makes them finish together.
#pragma once

#include <stop_token>
#include <vector>

#include "motley/base/result.h"
#include "motley/planning/cost/problem.h"
#include "motley/planning/plan/plan.h"

namespace motley::planning {

// A worker of a device type that takes `slowdown` times as long as the type does.
struct WorkerSpeed {
  int type = 0;
  double slowdown = 1;  // above 0
};

// The problem (kPipeline) with every worker as a type, in their order, one of each, named "worker-<i>".
Problem problem_of_workers(const Problem& types, const std::vector<WorkerSpeed>& workers);

// A plan whose replicas are workers: `workers` has the one in every place of the plan, stage by stage in the plan's
// order.
struct PlacedPlan {
  Plan plan;  // its replicas' types are those of the problem of the workers
  std::vector<int> workers;
  double step_seconds = 0;  // as planning::simulate has it
};

// The running plan by the speeds of this problem: its stages and workers with the shares that balance them.
Result<PlacedPlan> make_placement(const Problem& workers, const Plan& plan, const std::vector<int>& places);

// The best placement that is found, which may be the running one. Up to kMaxMaps ways to give the workers to stages
// are all looked at; of more, those that moving or swapping workers leads to. The layers of each are cut so that the
// slowest stage is as fast as can be, and the cuts then moved as long as the step gets shorter. Deterministic, except
// where it is stopped. Errors are those of planning::simulate.
inline constexpr double kMaxMaps = 4000;
Result<PlacedPlan> repartition(const Problem& workers, const PlacedPlan& running, const std::stop_token& stop);

}  // namespace motley::planning
