// Rewards that are measured: `motley plan --measure JOB` runs the plans that a planner wants valued, a few steps each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "motley/base/clock.h"
#include "motley/planning/cost/evaluation.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/job/job.h"

namespace motley::app {

// Where a sentence of progress goes.
using Tell = std::function<void(const std::string&)>;

struct MeasureLimits {
  std::int64_t steps = 12;  // of each run
  std::int64_t plans = 30;  // that are run, at most
  double seconds = 60;      // for all of it
};

// Values candidates by the median step of runs of the job on this machine, and tells a line about each. A plan that was
// run before is not run again. One that cannot be run is not feasible. For one thread; `problem` must outlive it.
class MeasuredSteps {
 public:
  MeasuredSteps(train::Job job, const planning::Problem& problem, planning::Objective objective,
                const MeasureLimits& limits, std::stop_token stop, Tell tell);

  planning::Evaluation evaluate(const planning::Candidate& candidate);

  // The step of a candidate that was run, with the number of steps that it is the median of.
  std::optional<planning::Measured> measured(const planning::Candidate& candidate) const;
  std::int64_t plans() const { return static_cast<std::int64_t>(seconds_.size()); }
  std::int64_t failed() const;
  const std::string& first_failure() const { return first_failure_; }  // "": there was none

 private:
  planning::Plan build_plan(const planning::Candidate& candidate) const;

  train::Job job_;
  const planning::Problem& problem_;
  planning::Objective objective_;
  MeasureLimits limits_;
  Deadline deadline_;
  std::stop_token stop_;
  Tell tell_;
  std::map<std::string, std::optional<double>> seconds_;  // by the plan as JSON; none: it did not run
  std::string first_failure_;
};

}  // namespace motley::app
