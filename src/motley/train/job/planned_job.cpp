#include "motley/train/job/planned_job.h"

#include <algorithm>
#include <map>

namespace motley::train {
namespace {

bool uses_server(const planning::Plan& plan) {
  return std::ranges::any_of(plan.stages, [](const planning::Stage& stage) {
    return stage.gradient_sync == planning::GradientSync::kParameterServer;
  });
}

}  // namespace

Result<planning::Plan> build_plan(const Job& job) {
  MOTLEY_ASSIGN(planning::Plan plan, planning::read_plan(job.execution.plan));
  const auto refuse = [&](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  if (plan.batch != job.training.global_batch_size) {
    return refuse(fmt::format("global_batch_size: {}, but the plan '{}' is for {} samples a step; accepted: {}",
                              job.training.global_batch_size, job.execution.plan, plan.batch, plan.batch));
  }
  if (job.training.gradient_accumulation_steps != 1) {
    return refuse(
        fmt::format("gradient_accumulation_steps: {}, but the plan '{}' cuts a step into {} micro-batches; accepted: 1",
                    job.training.gradient_accumulation_steps, job.execution.plan, plan.micro_batches));
  }
  if ((job.batch_split.mode != "dynamic" && job.batch_split.mode != "fixed") || !job.batch_split.fixed.empty() ||
      job.baseline.every != 0) {
    return refuse(fmt::format(
        "{}; accepted with a plan: batch_split.mode dynamic or fixed (to those of the plan), and baseline.every 0",
        job.baseline.every != 0          ? fmt::format("baseline.every: {}", job.baseline.every)
        : !job.batch_split.fixed.empty() ? "batch_split.fixed is given"
                                         : "batch_split.mode: " + job.batch_split.mode));
  }
  if (job.gradient_sync.consistency != "bsp") {
    return refuse(
        fmt::format("gradient_sync.consistency: {}; accepted with a plan: bsp", job.gradient_sync.consistency));
  }
  if (!job.gradient_sync.racks.empty() || job.gradient_sync.placement == "hierarchical" ||
      job.gradient_sync.placement == "colocated") {
    return refuse(
        fmt::format("gradient_sync.placement: {}; accepted with a plan: auto, central or sharded, without racks",
                    job.gradient_sync.placement));
  }
  if (job.gradient_sync.comm_dtype == "auto") {
    return refuse("gradient_sync.comm_dtype: auto; accepted with a plan: float32, bfloat16, float16, int8 and top-k");
  }
  return plan;
}

Status follow_plan(Job& job) {
  if (job.execution.plan.empty()) return {};
  MOTLEY_ASSIGN(const planning::Plan plan, build_plan(job));
  if (is_synthetic(job) && job.execution.emulation.empty()) {
    job.execution.emulation = job.model.path;
  }
  const bool served = uses_server(plan);
  if (served && job.gradient_sync.method == "auto") {
    job.gradient_sync.method = "parameter-server";
  }
  if (served != (job.gradient_sync.method == "parameter-server")) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.method: {}, but {} of the plan '{}' use a parameter server; accepted: {}",
                job.gradient_sync.method, served ? "stages" : "no stages", job.execution.plan,
                served ? "auto or parameter-server" : "auto, ring, shared-memory or tcp-ring");
  }
  return {};
}

Result<cluster::Cluster> planned_cluster(const Job& job, const planning::Plan& plan, cluster::Cluster described) {
  std::map<std::string, std::vector<cluster::Worker>> of_type;
  for (cluster::Worker& worker : described.workers) {
    if (worker.emulation) {
      return fail(ErrorCode::kInvalidInput,
                  "{}: workers: '{}' is emulated, as a worker that computes the whole network; accepted with a plan: "
                  "workers without emulation, or the key emulation with a profile",
                  job.execution.cluster, worker.name);
    }
    of_type[worker.device].push_back(std::move(worker));
  }
  const bool are_described = !described.workers.empty();
  described.workers.clear();
  std::map<std::string, std::size_t> taken;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const planning::Replicas& replicas : plan.stages[s].replicas) {
      const std::string& type = replicas.type;
      if (!job.execution.cluster.empty() && described.device_type(type) == nullptr) {
        return fail(ErrorCode::kInvalidInput, "{}: stages[{}] runs on '{}', which is no device type of '{}'",
                    job.execution.plan, s, type, job.execution.cluster);
      }
      for (std::int64_t i = 0; i < replicas.count; ++i) {
        const std::size_t number = taken[type]++;
        if (are_described && number >= of_type[type].size()) {
          return fail(ErrorCode::kInvalidInput,
                      "{}: workers: {} of type '{}' are described, and the plan '{}' has more replicas of it",
                      job.execution.cluster, of_type[type].size(), type, job.execution.plan);
        }
        cluster::Worker worker;
        if (are_described) {
          worker = of_type[type][number];
        } else {
          worker.name = fmt::format("{}-{}", type, number);
          worker.device = type;
          worker.threads = job.execution.threads;
          const cluster::Node* node = described.node_with(type, static_cast<std::int64_t>(number));
          if (node != nullptr) worker.node = node->name;
        }
        described.workers.push_back(std::move(worker));
      }
    }
  }
  const auto count = static_cast<std::int64_t>(described.workers.size());
  if (job.execution.workers > 0 && job.execution.workers != count) {
    return fail(ErrorCode::kInvalidInput, "workers: {} is given, the plan '{}' has {} replicas; accepted: 0 or {}",
                job.execution.workers, job.execution.plan, count, count);
  }
  return described;
}

}  // namespace motley::train
