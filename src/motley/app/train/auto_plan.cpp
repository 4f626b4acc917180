#include "motley/app/train/auto_plan.h"

#include <algorithm>
#include <filesystem>

#include "motley/app/planning_input.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/base/units.h"
#include "motley/cluster/cluster.h"
#include "motley/cluster/machine.h"
#include "motley/planning/methods.h"
#include "motley/planning/replan/heterogeneous_stages.h"
#include "motley/train/profile/profile_job.h"

namespace motley::app {
namespace {

constexpr double kProfileSeconds = 20;
constexpr double kPlanSeconds = 30;

// This machine, with a CPU device for each worker of the job's threads that it has cores for.
cluster::Cluster describe_machine(const train::Job& job) {
  const cluster::Machine machine = cluster::detect_machine();
  cluster::Cluster cluster = cluster::default_cluster(machine);
  cluster.workers.clear();
  const std::int64_t count = std::max<std::int64_t>(1, machine.cores / job.execution.threads);
  for (cluster::DeviceType& type : cluster.device_types) {
    if (type.kind != cluster::DeviceKind::kCpu) continue;
    type.count = count;
    type.memory_bytes /= static_cast<double>(count);
    for (cluster::NodeDevices& devices : cluster.nodes.front().devices) {
      if (devices.type == type.name) devices.count = count;
    }
  }
  return cluster;
}

// Of the job's network on this machine; of one that is synthetic, what it is made from.
Result<model::Profile> load_profile(const train::Job& job, const AutoPlanView& view) {
  if (train::is_synthetic(job)) {
    return model::read_profile(job.model.path);
  }
  train::ProfileJobOptions options;
  options.seconds = kProfileSeconds;
  options.motley = std::filesystem::read_symlink("/proc/self/exe");
  options.progress = view.profiling;
  Result<model::Profile> profile = train::profile_job(job, options);
  view.profiled();
  return profile;
}

// From a profile, which is left in the folder, as is the cluster where the job names none.
Result<planning::Plan> make_plan(const train::Job& job, const std::filesystem::path& folder, const AutoPlanView& view) {
  const std::filesystem::path profile_file = folder / "profile.json";
  std::string cluster_file = job.execution.cluster;
  if (cluster_file.empty()) {
    cluster_file = (folder / "cluster.yaml").string();
    MOTLEY_TRY(write_file(cluster_file, cluster::to_yaml(describe_machine(job))));
  }
  MOTLEY_ASSIGN(const model::Profile profile, load_profile(job, view));
  MOTLEY_TRY(write_file(profile_file, model::to_json(profile)));

  PlanningInput input;
  input.profile = profile_file.string();
  input.cluster = cluster_file;
  input.batch = job.training.global_batch_size;
  MOTLEY_ASSIGN(const std::vector<planning::Problem> problems, planning_problems(input, view.warn));
  const planning::Objective objective{.criterion = planning::Criterion::kMaxThroughput};
  const InterruptStop interrupt;
  MOTLEY_ASSIGN(const Solved solved, solve({"exact", planning::plan_exact}, problems, objective,
                                           {.seconds = kPlanSeconds}, interrupt.token(), view.ask));
  if (!solved.answer.best) {
    return fail(ErrorCode::kUnavailable, "plan: auto found {}; 'motley plan --profile {} --cluster {}' says more",
                solved.answer.proved ? "that no plan fits the devices" : "no plan in time", profile_file.string(),
                cluster_file);
  }
  const planning::Plan best =
      planning::to_plan(*solved.problem, *solved.answer.best, solved.answer.evaluation, objective, "exact");
  // Stages that mix types have no server to meet at.
  return job.gradient_sync.method == "parameter-server"
             ? Result<planning::Plan>(best)
             : planning::find_heterogeneous_stages(*solved.problem, best, interrupt.token());
}

std::int64_t count_workers(const planning::Stage& stage) {
  std::int64_t count = 0;
  for (const planning::Replicas& replicas : stage.replicas) count += replicas.count;
  return count;
}

// All workers compute the whole network, and are all that the job has.
Result<bool> is_data_parallel(const train::Job& job, const planning::Plan& plan) {
  if (train::is_synthetic(job) || plan.stages.size() != 1 || plan.stages[0].recompute) return false;
  if (job.execution.cluster.empty()) return true;
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.execution.cluster));
  return static_cast<std::int64_t>(cluster.workers.size()) == count_workers(plan.stages[0]);
}

}  // namespace

Result<AutoPlan> plan_automatically(train::Job job, const train::RunDirectory& run, bool resume,
                                    const AutoPlanView& view) {
  if (job.execution.workers != 0 && job.execution.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "workers: {}; accepted with plan auto: 0, as the plan says how many",
                job.execution.workers);
  }
  const std::filesystem::path plan_file = std::filesystem::absolute(run.folder() / "plan.json");
  planning::Plan plan;
  if (resume && std::filesystem::exists(plan_file)) {
    MOTLEY_ASSIGN(plan, planning::read_plan(plan_file));
  } else {
    MOTLEY_ASSIGN(plan, make_plan(job, run.folder(), view));
    MOTLEY_TRY(write_file(plan_file, planning::to_json(plan)));
  }
  MOTLEY_ASSIGN(const bool whole, is_data_parallel(job, plan));
  if (whole) {
    job.execution.workers = count_workers(plan.stages[0]);
    job.training.gradient_accumulation_steps = plan.micro_batches;
  } else {
    job.execution.plan = plan_file.string();
    job.execution.profile = std::filesystem::absolute(run.folder() / "profile.json").string();
  }
  std::string summary =
      fmt::format("{}: {}, predicted {} a step", plan_file.string(),
                  whole ? fmt::format("{} workers compute the whole network", job.execution.workers)
                        : fmt::format("{} stages, {} micro-batches", plan.stages.size(), plan.micro_batches),
                  format_seconds(plan.predicted.step_seconds));
  return AutoPlan{std::move(job), std::move(summary)};
}

}  // namespace motley::app
