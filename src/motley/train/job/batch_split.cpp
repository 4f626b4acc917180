#include "motley/train/job/batch_split.h"

#include <algorithm>
#include <filesystem>

#include "motley/base/os/file.h"

namespace motley::train {

Result<data::BatchSplitOptions> make_split_options(const Job& job, const cluster::Cluster& cluster,
                                                   bool has_batch_norm) {
  data::BatchSplitOptions options;
  MOTLEY_ASSIGN(options.policy, data::parse_split_policy(job.batch_split.mode));
  options.batch = static_cast<std::uint32_t>(job.training.global_batch_size);
  for (const cluster::Worker& worker : cluster.workers) {
    data::WorkerLimits limits;
    limits.minimum = static_cast<std::uint32_t>(std::max<std::int64_t>(worker.min_samples, has_batch_norm ? 2 : 1));
    if (worker.max_samples) {
      limits.maximum = static_cast<std::uint32_t>(std::min<std::int64_t>(*worker.max_samples, limits.maximum));
    }
    options.limits.push_back(limits);
  }
  // A shard may be a single sample; and shards are claimed by workers at the same step.
  options.may_pull = !has_batch_norm && job.gradient_sync.consistency == "bsp";
  if (options.policy == data::SplitPolicy::kFixed && job.execution.plan.empty()) {
    if (job.batch_split.fixed.size() != cluster.workers.size()) {
      return fail(ErrorCode::kInvalidInput, "batch_split.fixed: {} numbers are given for {} workers",
                  job.batch_split.fixed.size(), cluster.workers.size());
    }
    options.proportions.assign(job.batch_split.fixed.begin(), job.batch_split.fixed.end());
  }
  if (options.policy == data::SplitPolicy::kReplay) {
    const std::filesystem::path file = std::filesystem::path(job.batch_split.replay) / "metrics.jsonl";
    MOTLEY_ASSIGN(const std::string text, read_file(file));
    MOTLEY_ASSIGN(options.recorded, data::read_splits(text, file.string()));
  }
  return options;
}

bool is_baseline_step(const Job& job, std::int64_t step) {
  if (job.baseline.every == 0 || job.batch_split.mode == "replay") {
    return false;
  }
  return step > job.baseline.every && (step - 1) % job.baseline.every < job.baseline.steps;
}

data::BatchSplit equal_split(std::uint32_t window, std::span<const data::WorkerLimits> limits) {
  const auto size = static_cast<std::uint32_t>(limits.size());
  data::BatchSplit shares(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    shares[i] = window / size + (i < window % size ? 1 : 0);
  }
  // What a worker cannot hold goes to the first that can.
  for (std::uint32_t i = 0; i < size; ++i) {
    for (std::uint32_t j = 0; j < size && shares[i] > limits[i].maximum; ++j) {
      if (shares[j] < limits[j].maximum) {
        const std::uint32_t moved = std::min(shares[i] - limits[i].maximum, limits[j].maximum - shares[j]);
        shares[i] -= moved;
        shares[j] += moved;
      }
    }
  }
  return shares;
}

}  // namespace motley::train
