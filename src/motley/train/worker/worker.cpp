#include "motley/train/worker/worker.h"

#include <signal.h>

#include <algorithm>

#include "motley/base/log.h"
#include "motley/nn/runtime.h"
#include "motley/train/job/planned_job.h"
#include "motley/train/launch/launcher.h"
#include "motley/train/worker/rank_worker.h"

namespace motley::train {
namespace {

volatile sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

}  // namespace

Result<cluster::Cluster> make_cluster(const Job& job) {
  cluster::Cluster cluster;
  if (!job.execution.cluster.empty()) {
    MOTLEY_ASSIGN(cluster, cluster::read_cluster(job.execution.cluster));
  }
  if (!job.execution.plan.empty()) {
    MOTLEY_ASSIGN(const planning::Plan plan, build_plan(job));
    return planned_cluster(job, plan, std::move(cluster));
  }
  if (!job.execution.cluster.empty()) {
    const auto described = static_cast<std::int64_t>(cluster.workers.size());
    if (job.execution.workers > 0 && described != job.execution.workers) {
      return fail(ErrorCode::kInvalidInput, "workers: {} is given, '{}' describes {}", job.execution.workers,
                  job.execution.cluster, described);
    }
    if (described == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: workers: the file describes none; a job needs at least one",
                  job.execution.cluster);
    }
  } else {
    for (std::int64_t rank = 0; rank < std::max<std::int64_t>(1, job.execution.workers); ++rank) {
      cluster::Worker worker;
      worker.name = fmt::format("worker-{}", rank);
      worker.threads = job.execution.threads;
      cluster.workers.push_back(std::move(worker));
    }
  }
  if (job.training.global_batch_size < static_cast<std::int64_t>(cluster.workers.size())) {
    return fail(ErrorCode::kInvalidInput,
                "global_batch_size: {} is smaller than the number of workers; accepted: {} or more",
                job.training.global_batch_size, cluster.workers.size());
  }
  return cluster;
}

Status train_as_rank(const Job& job, const RunDirectory& run, const Role& role, const std::filesystem::path& hosts,
                     bool resume) {
  MOTLEY_ASSIGN(cluster::Cluster cluster, make_cluster(job));
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
  std::optional<planning::Plan> plan;
  if (!job.execution.plan.empty()) {
    MOTLEY_ASSIGN(plan, build_plan(job));
  }
  RankWorker worker(job, run, role, std::move(cluster), std::move(plan));
  return worker.run(hosts, resume, [] { return stop_requested != 0; });
}

}  // namespace motley::train
