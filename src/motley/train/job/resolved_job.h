// A job with what its files say, read once in a process and handed down: the plan and the cluster, held against the
// job's keys, and what follows from them.
#pragma once

#include <optional>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/batch_split.h"
#include "motley/planning/plan/plan.h"
#include "motley/train/job/job.h"

namespace motley::train {

struct ResolvedJob {
  Job job;                             // with the keys that the plan decides
  cluster::Cluster cluster;            // with a worker for each rank; an elastic job may begin with the first ones
  std::optional<planning::Plan> plan;  // none: every worker computes all layers
};

// Errors (kInvalidInput) name the key or the file, and what would be accepted.
//
// `can_grow`: its launcher can start further workers, so that an elastic job has a rank for each worker that it may
// have, whatever execution.workers it begins with.
Result<ResolvedJob> resolve_job(Job job, bool can_grow = false);

// Fewer samples than these have no variance for BatchNorm.
inline constexpr std::int64_t kLeastNormalised = 2;

// How a job's steps are split among its workers, in the terms of `data`. Errors: kInvalidInput.
Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm);

}  // namespace motley::train
