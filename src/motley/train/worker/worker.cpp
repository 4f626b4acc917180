#include "motley/train/worker/worker.h"

#include <signal.h>

#include <algorithm>

#include "motley/base/log.h"
#include "motley/nn/runtime.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/worker/rank_worker.h"

namespace motley::train {
namespace {

volatile sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

}  // namespace

Status train_as_rank(const ResolvedJob& resolved, const RunDirectory& run, const Role& role,
                     const std::filesystem::path& hosts, bool resume) {
  const auto& [job, cluster, plan] = resolved;
  if (static_cast<int>(cluster.workers.size()) != role.size) {
    return fail(ErrorCode::kInvalidInput, "{} ranks were started, the job names {} workers{}", role.size,
                cluster.workers.size(),
                !job.execution.plan.empty()      ? " by the plan '" + job.execution.plan + "'"
                : !job.execution.cluster.empty() ? " in '" + job.execution.cluster + "'"
                                                 : "");
  }
  start_logging(job.log_level, role.rank);
  if (role.launcher == "motley") {
    MOTLEY_TRY(follow_launcher());
  }
  struct sigaction action{};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);

  const cluster::Worker& own = cluster.workers[static_cast<std::size_t>(role.rank)];
  MOTLEY_TRY(pin_to_cores(own));
  nn::keep_freed_memory();
  nn::set_threads(static_cast<int>(own.threads));
  nn::set_deterministic(job.execution.deterministic);
  RankWorker worker(job, run, role, cluster, plan);
  return worker.run(hosts, resume, [] { return stop_requested != 0; });
}

}  // namespace motley::train
