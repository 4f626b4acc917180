// A job that is started on this machine: what can be told of it before any worker starts, and its workers and server.
#pragma once

#include "motley/base/result.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/launcher.h"

namespace motley::train {

// Whether what the job names is there, as far as can be told at once: files that open, servers and racks that go
// together, splits that suit the workers.
Status check_inputs(const ResolvedJob& resolved);

// The job with the keys that follow from its files and the number of its workers, after check_inputs().
Result<Job> prepare_job(Job job);

// How long workers have to stop as they are asked to, with a checkpoint written, beside what their steps take: others
// may be waited for in the last one.
double stop_seconds(const Job& job);

// Runs the workers of a prepared job as processes of this program, and a parameter server where it needs one of its
// own, which keeps rows of a table in the run's folder. Errors: those of launch_workers.
Status launch_job(const Job& job, const RunDirectory& run, bool resume, LaunchOptions options = {});

}  // namespace motley::train
