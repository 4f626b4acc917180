// How a job's steps are split among its workers, in the terms of `data`.
#pragma once

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/data/local/batch_split.h"
#include "motley/train/job/job.h"

namespace motley::train {

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm);

}  // namespace motley::train
