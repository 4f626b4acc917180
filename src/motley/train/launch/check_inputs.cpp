#include "motley/train/launch/check_inputs.h"

#include <fstream>

#include "motley/base/os/file.h"
#include "motley/train/job/batch_split.h"
#include "motley/train/job/job_data.h"
#include "motley/train/job/servers.h"
#include "motley/train/launch/server_placement.h"

namespace motley::train {

Status check_inputs(const ResolvedJob& resolved) {
  const auto& [job, cluster, plan] = resolved;
  if ((job.gradient_sync.method == "parameter-server" || job.gradient_sync.method == "auto") &&
      !job.gradient_sync.servers.empty()) {
    MOTLEY_TRY(read_servers(job));
  }
  if (job.gradient_sync.method == "parameter-server") {
    if (job.model.dtype == "float64") {
      return fail(ErrorCode::kInvalidInput,
                  "model.dtype: float64; accepted with gradient_sync.method parameter-server: float32, in which "
                  "servers keep weights");
    }
    MOTLEY_TRY(check_placement(job, static_cast<int>(cluster.workers.size())));
  }
  if (!job.model.path.empty() && !std::ifstream(job.model.path)) {
    return fail(ErrorCode::kInvalidInput, "model.path: cannot read '{}': {}", job.model.path, errno_text());
  }
  MOTLEY_TRY(check_data(job));
  MOTLEY_ASSIGN(data::BatchSplitOptions partition, make_split_options(job, cluster, false));
  if (!plan) {
    MOTLEY_TRY(data::BatchSplitter::create(std::move(partition)));
  }
  return {};
}

}  // namespace motley::train
