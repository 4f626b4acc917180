// One rank of a training job, from joining the others to the last checkpoint: the loop that puts data, learning,
// partition and exchange together.
#pragma once

#include "motley/base/result.h"
#include "motley/train/job/resolved_job.h"
#include "motley/train/job/run_directory.h"
#include "motley/train/launch/role.h"

namespace motley::train {

// Runs this rank until the job is done. kInterrupted after SIGINT, with a checkpoint written, and after SIGTERM, where
// the job is not elastic; where it is, the process ends here with 143, and the others go on. The launcher's end
// counts as SIGINT. An error that is about another rank carries that rank. `writes`: whether this rank is the one that
// wrote the run's files, in the end. Call once in a process, from its main thread.
Status train_as_rank(const ResolvedJob& resolved, const RunDirectory& run, const Role& role,
                     const std::filesystem::path& hosts, bool resume, bool& writes);

}  // namespace motley::train
