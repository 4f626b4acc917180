#include "motley/train/job/planned_job.h"

#include <algorithm>
#include <map>

namespace motley::train {
namespace {

bool uses_server(const planning::Plan& plan) {
  return std::ranges::any_of(
      plan.stages, [](const planning::Stage& stage) { return stage.exchange == planning::Exchange::kParameterServer; });
}

}  // namespace

Result<planning::Plan> plan_of(const Job& job) {
  MOTLEY_ASSIGN(planning::Plan plan, planning::read_plan(job.plan));
  const auto refuse = [&](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  if (plan.batch != job.batch) {
    return refuse(fmt::format("batch: {}, but the plan '{}' is for {} samples a step; accepted: {}", job.batch,
                              job.plan, plan.batch, plan.batch));
  }
  if (job.accumulation != 1) {
    return refuse(fmt::format("accumulation: {}, but the plan '{}' cuts a step into {} micro-batches; accepted: 1",
                              job.accumulation, job.plan, plan.micro_batches));
  }
  if ((job.shares != "dynamic" && job.shares != "fixed") || !job.shares_fixed.empty() || job.control_every != 0) {
    return refuse(fmt::format(
        "{}; accepted with a plan: shares.mode dynamic or fixed (to those of the plan), and control.every 0",
        job.control_every != 0      ? fmt::format("control.every: {}", job.control_every)
        : !job.shares_fixed.empty() ? "shares.fixed is given"
                                    : "shares.mode: " + job.shares));
  }
  if (job.exchange_consistency != "bsp") {
    return refuse(fmt::format("exchange.consistency: {}; accepted with a plan: bsp", job.exchange_consistency));
  }
  if (!job.exchange_racks.empty() || job.exchange_placement == "hierarchical" ||
      job.exchange_placement == "colocated") {
    return refuse(fmt::format("exchange.placement: {}; accepted with a plan: auto, central or sharded, without racks",
                              job.exchange_placement));
  }
  if (job.exchange_wire == "auto") {
    return refuse("exchange.wire: auto; accepted with a plan: float32, bfloat16, float16, int8 and top-k");
  }
  return plan;
}

Status follow_plan(Job& job) {
  if (job.plan.empty()) return {};
  MOTLEY_ASSIGN(const planning::Plan plan, plan_of(job));
  if (imitates(job) && job.emulation.empty()) {
    job.emulation = job.model_path;
  }
  const bool served = uses_server(plan);
  if (served && job.exchange_method == "auto") {
    job.exchange_method = "ps";
  }
  if (served != (job.exchange_method == "ps")) {
    return fail(ErrorCode::kInvalidInput,
                "exchange.method: {}, but {} of the plan '{}' meet at a parameter server; accepted: {}",
                job.exchange_method, served ? "stages" : "no stages", job.plan,
                served ? "auto or ps" : "auto, ring, shared-memory or tcp-ring");
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
                  job.cluster, worker.name);
    }
    of_type[worker.device].push_back(std::move(worker));
  }
  const bool are_described = !described.workers.empty();
  described.workers.clear();
  std::map<std::string, std::size_t> taken;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const planning::Replicas& replicas : plan.stages[s].replicas) {
      const std::string& type = replicas.type;
      if (!job.cluster.empty() && described.device_type(type) == nullptr) {
        return fail(ErrorCode::kInvalidInput, "{}: stages[{}] runs on '{}', which is no device type of '{}'", job.plan,
                    s, type, job.cluster);
      }
      for (std::int64_t i = 0; i < replicas.count; ++i) {
        const std::size_t number = taken[type]++;
        if (are_described && number >= of_type[type].size()) {
          return fail(ErrorCode::kInvalidInput,
                      "{}: workers: {} of type '{}' are described, and the plan '{}' has more replicas of it",
                      job.cluster, of_type[type].size(), type, job.plan);
        }
        cluster::Worker worker;
        if (are_described) {
          worker = of_type[type][number];
        } else {
          worker.name = fmt::format("{}-{}", type, number);
          worker.device = type;
          worker.threads = job.threads;
        }
        described.workers.push_back(std::move(worker));
      }
    }
  }
  const auto count = static_cast<std::int64_t>(described.workers.size());
  if (job.workers > 0 && job.workers != count) {
    return fail(ErrorCode::kInvalidInput, "workers: {} is given, the plan '{}' has {} replicas; accepted: 0 or {}",
                job.workers, job.plan, count, count);
  }
  return described;
}

}  // namespace motley::train
