// `plan: auto`: profile, plan and train in one go.
#pragma once

#include "motley/base/result.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"

namespace motley::cli {

// The job as the best plan for it wants it, found by what `motley profile` and `motley plan` do; the files are left in
// the run's folder. A run that is resumed goes on by the plan that it has. The best plan may be that all workers
// compute the whole network: the job then has no plan, so that it is balanced and exchanges as any other.
//
// `job` has no plan. Errors (kInvalidInput) name the key; kUnavailable where no plan was found in time.
Result<train::Job> plan_automatically(train::Job job, const train::RunDirectory& run, bool resume);

}  // namespace motley::cli
