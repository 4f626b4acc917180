// One rank of a training job, from joining the others to the last checkpoint: the loop that puts data, learning,
// partition and exchange together.
#pragma once

#include "motley/base/result.h"
#include "motley/cluster/cluster.h"
#include "motley/train/job/job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/role.h"

namespace motley::train {

// The cluster that a job runs on: its cluster file, or this machine with job.execution.workers equal workers. Checks
// that the numbers of workers agree and that the batch is large enough for them.
Result<cluster::Cluster> make_cluster(const Job& job);

// Runs this rank until the job is done. kInterrupted after SIGINT or SIGTERM, with a checkpoint written. An error that
// is about another rank carries that rank. Call once in a process, from its main thread.
Status train_as_rank(const Job& job, const RunDirectory& run, const Role& role, const std::filesystem::path& hosts,
                     bool resume);

}  // namespace motley::train
