// `plan: auto`: profile, plan and train in one go.
#pragma once

#include <functional>
#include <string>

#include "motley/app/solving.h"
#include "motley/base/result.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"

namespace motley::app {

// What the user may be shown meanwhile.
struct AutoPlanView {
  std::function<void(const std::string&)> profiling;  // a sentence of progress, again and again
  std::function<void()> profiled;                     // the last was said, or profiling failed
  std::function<void(const std::string&)> warn;
  Ask ask = ask_silently;
};

struct AutoPlan {
  train::Job job;
  std::string summary;  // "plan.json: 2 stages, 8 micro-batches, predicted 12 ms a step"
};

// The job as the best plan for it wants it, found by what `motley profile` and `motley plan` do; the files are left in
// the run's folder. A run that is resumed goes on by the plan that it has. The best plan may be that all workers
// compute the whole network: the job then has no plan, so that it is balanced and exchanges as any other.
//
// `job` has no plan. Errors (kInvalidInput) name the key; kUnavailable where no plan was found in time.
Result<AutoPlan> plan_automatically(train::Job job, const train::RunDirectory& run, bool resume,
                                    const AutoPlanView& view);

}  // namespace motley::app
