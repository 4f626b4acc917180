// How a job's steps are split among its workers, in the terms of `data`.
#pragma once

#include <cstdint>
#include <span>

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/batch_split.h"
#include "motley/train/job/job.h"

namespace motley::train {

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm);

// Whether this step (counted from 1) is run with the equal split, to compare with.
bool is_baseline_step(const Job& job, std::int64_t step);

// The equal split of a window, within the workers' limits.
data::BatchSplit equal_split(std::uint32_t window, std::span<const data::WorkerLimits> limits);

}  // namespace motley::train
