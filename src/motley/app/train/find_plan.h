// What `motley plan` does: finds a plan by a method that is named, valued by the cost model or by running plans, with
// what the answer hangs on beside it.
#pragma once

#include <cstdint>
#include <limits>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/app/planning_input.h"
#include "motley/planning/search/found_plan.h"

namespace motley::app {

struct PlanQuestion {
  PlanningInput input;
  std::string method = "exact";
  std::string criterion;  // "": cost with a minimum throughput, else throughput
  double min_throughput = 0;
  double max_cost = std::numeric_limits<double>::infinity();
  double max_hourly_cost = std::numeric_limits<double>::infinity();
  SearchLimits search;
  bool compare = false;
  bool heterogeneous_stages = false;
  std::string measure;              // a job file; "": plans are valued by the cost model
  std::int64_t measure_steps = 12;  // of each plan that is run
  std::int64_t measure_plans = 30;  // that are run, at most
  std::vector<std::string> what_ifs;

  static const OptionTable<PlanQuestion>& options();
};

// What the question comes to, read and checked.
struct PlanTask {
  std::vector<planning::Problem> problems;  // that differ in the number of micro-batches alone
  std::vector<planning::Problem> unmerged;  // likewise, of all layers, where `problems` are of merged ones; else empty
  planning::Objective objective;
  std::vector<planning::WhatIf> what_ifs;
};
// Errors (kInvalidInput) name the flag.
Result<PlanTask> make_plan_task(const PlanQuestion& question, const Tell& warn);

struct PlanFinder {
  const PlanQuestion& question;
  const PlanTask& task;
  std::stop_token stop;
  Ask ask;
  Tell tell;  // a line about each plan that is run

  // The plan, with stages that mix types where the question wants them, and what stands beside it: what it was chosen
  // over, one device more or fewer, what-ifs, the other methods. Where it is stopped, the best plan so far. Errors:
  // kInvalidInput with the reason where it is proved that no plan exists; kUnavailable where none was found;
  // kInterrupted where it is stopped before all methods or all what-ifs that were asked for have been answered.
  Result<planning::FoundPlan> find() const;
};

}  // namespace motley::app
