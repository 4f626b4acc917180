// What can be told of a job's inputs before any worker starts.
#pragma once

#include "motley/base/result.h"
#include "motley/train/job/resolved_job.h"

namespace motley::train {

// Whether what the job names is there, as far as can be told at once: files that open, splits that suit the workers.
Status check_inputs(const ResolvedJob& resolved);

}  // namespace motley::train
