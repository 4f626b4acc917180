#include "motley/cli/auto_plan.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "motley/base/os/file.h"
#include "motley/base/units.h"
#include "motley/cli/planning_input.h"
#include "motley/cli/solving.h"
#include "motley/cluster/cluster.h"
#include "motley/cluster/machine.h"
#include "motley/planning/methods.h"
#include "motley/planning/replan/mixed_stages.h"
#include "motley/train/launch/progress.h"
#include "motley/train/profile/profile_job.h"

namespace motley::cli {
namespace {

constexpr double kProfileSeconds = 20;
constexpr double kPlanSeconds = 30;

// This machine, with a CPU device for each worker of the job's threads that it has cores for.
cluster::Cluster machine_of(const train::Job& job) {
  const cluster::Machine machine = cluster::detect_machine();
  cluster::Cluster cluster = cluster::default_cluster(machine);
  cluster.workers.clear();
  const std::int64_t count = std::max<std::int64_t>(1, machine.cores / job.threads);
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

// Of the job's network on this machine; of one that is imitated, what it is imitated from.
Result<model::Profile> profile_of(const train::Job& job) {
  if (train::imitates(job)) {
    return model::read_profile(job.model_path);
  }
  train::ProgressLine progress;
  train::ProfileJobOptions options;
  options.seconds = kProfileSeconds;
  options.motley = std::filesystem::read_symlink("/proc/self/exe");
  options.progress = [&](const std::string& text) { progress.show("profiling: " + text); };
  Result<model::Profile> profile = train::profile_job(job, options);
  progress.clear();
  return profile;
}

// From a profile, which is left in the folder, as is the cluster where the job names none.
Result<planning::Plan> make_plan(const train::Job& job, const std::filesystem::path& folder) {
  const std::filesystem::path profile_file = folder / "profile.json";
  std::string cluster_file = job.cluster;
  if (cluster_file.empty()) {
    cluster_file = (folder / "cluster.yaml").string();
    MOTLEY_TRY(write_file(cluster_file, cluster::to_yaml(machine_of(job))));
  }
  MOTLEY_ASSIGN(const model::Profile profile, profile_of(job));
  MOTLEY_TRY(write_file(profile_file, model::to_json(profile)));

  PlanningInput input;
  input.profile = profile_file.string();
  input.cluster = cluster_file;
  input.batch = job.batch;
  MOTLEY_ASSIGN(const std::vector<planning::Problem> problems, planning_problems(input));
  const planning::Objective objective{.goal = planning::Goal::kMostThroughput};
  const InterruptStop interrupt;
  MOTLEY_ASSIGN(const Solved solved,
                solve(*planning::make_exact(), problems, objective, {.seconds = kPlanSeconds}, interrupt.token()));
  if (!solved.answer.best) {
    return fail(ErrorCode::kUnavailable, "plan: auto found {}; 'motley plan --profile {} --cluster {}' says more",
                solved.answer.proved ? "that no plan fits the devices" : "no plan in time", profile_file.string(),
                cluster_file);
  }
  const planning::Plan best =
      planning::to_plan(*solved.problem, *solved.answer.best, solved.answer.evaluation, objective, "exact");
  // Stages that mix types have no server to meet at.
  return job.exchange_method == "ps" ? Result<planning::Plan>(best)
                                     : planning::mix_stages(*solved.problem, best, interrupt.token());
}

std::int64_t workers_of(const planning::Stage& stage) {
  std::int64_t count = 0;
  for (const planning::Replicas& replicas : stage.replicas) count += replicas.count;
  return count;
}

// All workers compute the whole network, and are all that the job has.
Result<bool> is_data_parallel(const train::Job& job, const planning::Plan& plan) {
  if (train::imitates(job) || plan.stages.size() != 1 || plan.stages[0].recompute) return false;
  if (job.cluster.empty()) return true;
  MOTLEY_ASSIGN(const cluster::Cluster cluster, cluster::read_cluster(job.cluster));
  return static_cast<std::int64_t>(cluster.workers.size()) == workers_of(plan.stages[0]);
}

}  // namespace

Result<train::Job> plan_automatically(train::Job job, const train::RunDirectory& run, bool resume) {
  if (job.workers != 0 && job.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "workers: {}; accepted with plan auto: 0, as the plan says how many",
                job.workers);
  }
  const std::filesystem::path plan_file = std::filesystem::absolute(run.folder() / "plan.json");
  planning::Plan plan;
  if (resume && std::filesystem::exists(plan_file)) {
    MOTLEY_ASSIGN(plan, planning::read_plan(plan_file));
  } else {
    MOTLEY_ASSIGN(plan, make_plan(job, run.folder()));
    MOTLEY_TRY(write_file(plan_file, planning::to_json(plan)));
  }
  MOTLEY_ASSIGN(const bool whole, is_data_parallel(job, plan));
  if (whole) {
    job.workers = workers_of(plan.stages[0]);
    job.accumulation = plan.micro_batches;
  } else {
    job.plan = plan_file.string();
    job.profile = std::filesystem::absolute(run.folder() / "profile.json").string();
  }
  std::printf("plan: %s: %s, predicted %s a step\n", plan_file.c_str(),
              whole ? fmt::format("{} workers compute the whole network", job.workers).c_str()
                    : fmt::format("{} stages, {} micro-batches", plan.stages.size(), plan.micro_batches).c_str(),
              format_seconds(plan.predicted.step_seconds).c_str());
  std::fflush(stdout);
  return job;
}

}  // namespace motley::cli
