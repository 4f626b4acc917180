// What to train and how: the job file (job.yaml), its keys and defaults. Every key is also a flag of `motley train`.
// Keys with a common prefix make a spec of that name, whose fields have the words of the keys: gradient_sync.comm_dtype
// is job.gradient_sync.comm_dtype. Each spec has the table of its options, and checks what its keys say by themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/options.h"
#include "motley/train/job/data_spec.h"
#include "motley/train/job/execution_spec.h"
#include "motley/train/job/gradient_sync_spec.h"
#include "motley/train/job/model_spec.h"
#include "motley/train/job/run_spec.h"
#include "motley/train/job/training_spec.h"

namespace motley::train {

struct Job {
  std::int64_t version = 2;
  std::string name = "job";
  std::int64_t seed = 1;
  ModelSpec model;
  DataSpec data;
  EmbeddingSpec embedding;
  TrainingSpec training;
  OptimizerSpec optimizer;
  LrSchedulerSpec lr_scheduler;
  double max_grad_norm = 0;  // 0: gradients are not clipped
  std::string precision = "float32";
  ExecutionSpec execution;
  GradientSyncSpec gradient_sync;
  BatchSplitSpec batch_split;
  BaselineSpec baseline;
  CheckpointSpec checkpoint;
  EvaluateSpec evaluate;
  AcceptanceSpec acceptance;
  DeadlineSpec deadline;
  TimelineSpec timeline;
  std::string log_level = "info";

  static const OptionTable<Job>& options();
};

// Reads a job file over the defaults. Relative paths in it are taken from the file's folder.
Result<Job> read_job(const std::filesystem::path& path);

// Sets keys from flags, after the file: {"optimizer.learning_rate", "0.1"}. Relative paths are taken from the current
// folder.
Status apply_flags(Job& job, const std::vector<std::pair<std::string, std::string>>& flags);

// Checks that need several keys at once, such as Nesterov without momentum.
Status check_job(const Job& job);

// Whether the job's network is synthetic (model.name synthetic). Nothing is learnt: weights stay as they are, and are
// neither evaluated nor kept.
bool is_synthetic(const Job& job);

// Whether the embeddings of the job's network are on servers.
bool has_served_table(const Job& job);

// The whole job as YAML, every key with its value and its help beside it; read_job reads it back to the same job.
std::string format_job(const Job& job);

// "model.hidden_sizes is [32], was [16]": the keys under these prefixes whose values differ; empty where none does.
std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes);

// A short hash of all that must be equal on every rank.
std::string fingerprint(const Job& job);

}  // namespace motley::train
