// A few real steps of a job, in processes of their own, of which nothing is left but their times: what profiles and
// measured plans are made of.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/job/job.h"

namespace motley::train {

// Over the steps of a run, in seconds: medians, but for the one that says otherwise.
struct StepTimes {
  double step = 0;           // all of it
  double compute = 0;        // loading, forward and backward, of the last worker
  double load = 0;           // loading alone, of that one
  double quiet_compute = 0;  // the same, in the fifth of the steps that other processes have disturbed least
  double rest = 0;           // of each step, what is neither that nor rows: optimizer, exchange, what is told
  double gradient_sync = 0;  // after the last worker's computation
  double rows = 0;           // waiting for rows of a served table, of the last worker
};

struct BriefRun {
  std::int64_t settling_steps = 0;                     // first, not counted
  std::int64_t steps = 1;                              // that are
  std::optional<Deadline> deadline = std::nullopt;     // see LaunchOptions
  std::optional<std::stop_token> stop = std::nullopt;  // likewise
};

// Runs the job as its keys say, but neither evaluates it nor keeps anything of it; with a plan by that, on the job's
// cluster, and workers do not move to another plan. Errors: those of launch_job; of a plan besides kInvalidInput, where
// it is not for the job's network or batch, or the cluster has no workers for it.
Result<StepTimes> run_briefly(Job job, const BriefRun& options, const planning::Plan* plan = nullptr);

}  // namespace motley::train
