#include "motley/train/job/resolved_job.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "motley/base/os/file.h"
#include "motley/base/units.h"

namespace motley::train {
namespace {

// The plan that the job names, held against its keys.
Result<planning::Plan> read_plan(const Job& job) {
  MOTLEY_ASSIGN(planning::Plan plan, planning::read_plan(job.execution.plan));
  const auto refuse = [&](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  if (plan.batch != job.training.global_batch_size) {
    return refuse(fmt::format("global_batch_size: {}, but the plan '{}' is for {} a step; accepted: {}",
                              job.training.global_batch_size, job.execution.plan, format_count(plan.batch, "sample"),
                              plan.batch));
  }
  if (job.training.gradient_accumulation_steps != 1) {
    return refuse(fmt::format("gradient_accumulation_steps: {}, but the plan '{}' cuts a step into {}; accepted: 1",
                              job.training.gradient_accumulation_steps, job.execution.plan,
                              format_count(plan.micro_batches, "micro-batch", "es")));
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
  const auto served =
      std::ranges::find(plan.stages, planning::GradientSync::kParameterServer, &planning::Stage::gradient_sync);
  if (!job.execution.elastic.empty() && served != plan.stages.end()) {
    return refuse(
        fmt::format("elastic: {}, but stages[{}] of the plan '{}' has gradient_sync parameter-server; accepted "
                    "with elastic: none and ring",
                    job.execution.elastic, served - plan.stages.begin(), job.execution.plan));
  }
  return plan;
}

// The keys that the plan decides where the job leaves them open: emulation of a synthetic network, gradient_sync.method
// where a stage meets at a parameter server.
Status follow_plan(const planning::Plan& plan, Job& job) {
  if (is_synthetic(job) && job.execution.emulation.empty()) {
    job.execution.emulation = job.model.path;
  }
  const bool served =
      std::ranges::count(plan.stages, planning::GradientSync::kParameterServer, &planning::Stage::gradient_sync) > 0;
  if (served && job.gradient_sync.method == "auto") job.gradient_sync.method = "parameter-server";
  if (served != (job.gradient_sync.method == "parameter-server")) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.method: {}, but {} of the plan '{}' use a parameter server; accepted: {}",
                job.gradient_sync.method, served ? "stages" : "no stages", job.execution.plan,
                served ? "auto or parameter-server" : "auto, ring, shared-memory or tcp-ring");
  }
  return {};
}

// A worker for each of the plan's replicas, stage by stage. Where the cluster describes workers, each replica is the
// next of its type; else it is any process of this machine.
Result<cluster::Cluster> arrange_workers(const Job& job, const planning::Plan& plan, cluster::Cluster described) {
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
    return fail(ErrorCode::kInvalidInput, "workers: {} is given, the plan '{}' has {}; accepted: 0 or {}",
                job.execution.workers, job.execution.plan, format_count(count, "replica"), count);
  }
  return described;
}

// The workers that the cluster file describes, or execution.workers equal ones on this machine; of a job that can grow
// as many as it may have.
Result<cluster::Cluster> make_workers(const Job& job, cluster::Cluster cluster, bool can_grow) {
  const bool is_elastic = !job.execution.elastic.empty();
  const bool grows = can_grow && is_elastic;
  const std::int64_t count = job.execution.workers > 0 && !grows ? job.execution.workers
                             : is_elastic                        ? job.execution.elastic_range().max
                                                                 : 1;
  if (!job.execution.cluster.empty()) {
    const auto described = static_cast<std::int64_t>(cluster.workers.size());
    if (job.execution.workers > described ||
        (job.execution.workers > 0 && described != job.execution.workers && !grows)) {
      return fail(ErrorCode::kInvalidInput, "workers: {} is given, '{}' describes {}", job.execution.workers,
                  job.execution.cluster, described);
    }
    if (described == 0) {
      return fail(ErrorCode::kInvalidInput, "{}: workers: the file describes none; a job needs at least one",
                  job.execution.cluster);
    }
  } else {
    for (std::int64_t rank = 0; rank < count; ++rank) {
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

// Whoever is lost, those that are left have to hold a step's samples, or an elastic job would end then.
Status check_elastic_limits(const Job& job, const std::vector<data::WorkerLimits>& limits) {
  const auto least = static_cast<std::size_t>(job.execution.elastic_range().min);
  std::vector<std::int64_t> maxima;
  for (const data::WorkerLimits& limit : limits) maxima.push_back(limit.maximum);
  if (least == 0 || least > maxima.size()) return {};
  std::ranges::sort(maxima);
  const std::int64_t held =
      std::accumulate(maxima.begin(), maxima.begin() + static_cast<std::ptrdiff_t>(least), std::int64_t{0});
  if (held >= job.training.global_batch_size) return {};
  return fail(ErrorCode::kInvalidInput,
              "elastic: '{}' goes on with {}, and those with the least max_samples hold {} of the {} samples of "
              "a step; accepted: a higher MIN, a larger max_samples in the cluster file, or a "
              "global_batch_size of up to {}",
              job.execution.elastic, format_count(least, "worker"), held, job.training.global_batch_size, held);
}

}  // namespace

Result<ResolvedJob> resolve_job(Job job, bool can_grow) {
  ResolvedJob resolved;
  if (!job.execution.plan.empty()) {
    MOTLEY_ASSIGN(resolved.plan, read_plan(job));
    MOTLEY_TRY(follow_plan(*resolved.plan, job));
  }
  if (!job.execution.cluster.empty()) {
    MOTLEY_ASSIGN(resolved.cluster, cluster::read_cluster(job.execution.cluster));
  }
  MOTLEY_ASSIGN(resolved.cluster, resolved.plan ? arrange_workers(job, *resolved.plan, std::move(resolved.cluster))
                                                : make_workers(job, std::move(resolved.cluster), can_grow));
  const auto [min, max] = job.execution.elastic_range();
  const int workers = static_cast<int>(resolved.cluster.workers.size());
  const int starting = job.execution.workers > 0 ? static_cast<int>(job.execution.workers) : workers;
  if (max > 0 && (starting < min || workers > max)) {
    return fail(ErrorCode::kInvalidInput, "elastic: {}; the job has {}; accepted: a range that they are in",
                job.execution.elastic, format_count(starting < min ? starting : workers, "worker"));
  }
  if (const auto& racks = job.gradient_sync.racks; max > 0 && !racks.empty() && std::ssize(racks) != workers) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.racks: {} numbers are given for {}; accepted with elastic {}: one for each that "
                "it may have",
                racks.size(), format_count(workers, "worker"), job.execution.elastic);
  }
  resolved.job = std::move(job);
  return resolved;
}

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm) {
  data::BatchSplitOptions options;
  MOTLEY_ASSIGN(options.policy, data::parse_split_policy(job.batch_split.mode));
  options.batch = static_cast<std::uint32_t>(job.training.global_batch_size);
  for (const cluster::Worker& worker : cluster.workers) {
    data::WorkerLimits limits;
    limits.minimum = static_cast<std::uint32_t>(std::max(worker.min_samples, has_batch_norm ? kLeastNormalised : 1));
    if (worker.max_samples) {
      limits.maximum = static_cast<std::uint32_t>(std::min<std::int64_t>(*worker.max_samples, limits.maximum));
    }
    options.limits.push_back(limits);
  }
  if (job.execution.plan.empty()) MOTLEY_TRY(check_elastic_limits(job, options.limits));
  // A shard may be a single sample; and shards are claimed by workers at the same step.
  options.may_pull = !has_batch_norm && job.execution.elastic.empty() && job.gradient_sync.consistency == "bsp";
  if (options.policy == data::SplitPolicy::kFixed && job.execution.plan.empty()) {
    if (job.batch_split.fixed.size() != cluster.workers.size()) {
      return fail(ErrorCode::kInvalidInput, "batch_split.fixed: {} numbers are given for {}",
                  job.batch_split.fixed.size(), format_count(cluster.workers.size(), "worker"));
    }
    options.proportions.assign(job.batch_split.fixed.begin(), job.batch_split.fixed.end());
    for (std::size_t i = 0; i < options.limits.size(); ++i) {  // a worker may be given nothing
      if (job.batch_split.fixed[i] == 0 && cluster.workers[i].min_samples == 0) options.limits[i].minimum = 0;
    }
  }
  if (options.policy == data::SplitPolicy::kReplay) {
    const std::filesystem::path file = std::filesystem::path(job.batch_split.replay) / "metrics.jsonl";
    MOTLEY_ASSIGN(const std::string text, read_file(file));
    MOTLEY_ASSIGN(options.recorded, data::read_splits(text, file.string()));
  }
  return options;
}

}  // namespace motley::train
