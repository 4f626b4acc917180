// What to train and how: the job file (job.yaml), its keys and defaults. Every key is also a flag of `motley train`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

inline constexpr const char* kAutoPlan = "auto";  // in Job::plan: the best that there is, found first

struct Job {
  std::int64_t version = 2;
  std::string name = "job";
  std::int64_t seed = 1;

  std::string model_name = "cnn";
  std::string model_path;
  std::vector<std::int64_t> model_hidden_sizes;
  std::int64_t model_num_layers = 0;
  std::int64_t model_hidden_size = 0;
  std::int64_t model_num_heads = 0;
  bool model_tie_embeddings = false;
  std::string model_norm = "auto";
  double model_dropout = 0;
  std::string model_dtype = "float32";
  std::vector<std::int64_t> model_input_shape;
  std::int64_t model_outputs = 0;

  std::string data_name = "fashion-mnist";
  std::string data_folder = "/usr/share/datasets/fashion-mnist";
  std::string data_train;
  std::string data_train_targets;
  std::string data_test;
  std::string data_test_targets;
  std::string data_target;
  std::string data_target_kind = "class";
  std::string data_drop_columns;
  std::string data_categorical_columns;
  double data_max_malformed_fraction = 0;
  double data_num_samples = 1e6;
  double data_num_categories = 1e6;
  double data_zipf = 1.05;
  std::int64_t data_sequence_length = 64;
  double data_test_fraction = 0.1;
  bool data_normalise = true;
  std::string data_server;
  std::string data_token_file;
  std::int64_t data_prefetch = 2;

  std::string embedding_placement = "server";
  std::int64_t num_embeddings = 1'000'001;
  std::int64_t embedding_dim = 0;
  std::string embedding_optimizer = "adagrad";
  double embedding_learning_rate = 0.05;
  double embedding_memory_bytes = 0;
  std::string embedding_comm_dtype = "float32";
  bool embedding_prefetch = true;
  std::int64_t embedding_cache_rows = 0;
  std::int64_t embedding_max_staleness = 0;

  std::int64_t global_batch_size = 256;
  std::int64_t gradient_accumulation_steps = 1;
  double epochs = 1;
  std::int64_t steps = 0;
  std::string loss = "cross-entropy";

  std::string optimizer_name = "sgd";
  double learning_rate = 0.05;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  std::vector<double> betas = {0.9, 0.999};
  double epsilon = 1e-8;
  std::string lr_scheduler_name = "constant";
  std::int64_t lr_scheduler_warmup_steps = 0;
  std::int64_t lr_scheduler_step_size = 1000;
  double lr_scheduler_gamma = 0.1;
  double lr_scheduler_min_lr_ratio = 0;
  double max_grad_norm = 0;
  std::string precision = "float32";

  std::int64_t workers = 0;
  std::string cluster;
  std::string plan;
  std::string profile;
  bool replan = true;
  std::string emulation;
  std::string device = "cpu";
  std::int64_t threads = 1;
  bool deterministic = true;

  std::string gradient_sync_method = "auto";
  std::string gradient_sync_comm_dtype = "float32";
  double gradient_sync_top_k = 0.01;
  double gradient_sync_bucket_size = 4e6;
  bool gradient_sync_overlap = true;
  std::string gradient_sync_consistency = "bsp";
  std::int64_t gradient_sync_staleness = 0;
  std::string gradient_sync_servers;
  std::string gradient_sync_token_file;
  std::string gradient_sync_tenant = "local";
  std::string gradient_sync_placement = "auto";
  std::vector<std::int64_t> gradient_sync_racks;
  std::int64_t gradient_sync_server_threads = 0;
  double gradient_sync_chunk_size = 32 << 10;

  std::string batch_split_mode = "dynamic";
  std::vector<std::int64_t> batch_split_fixed;
  std::string batch_split_replay;
  std::int64_t baseline_every = 0;
  std::int64_t baseline_steps = 3;

  std::int64_t checkpoint_every_steps = 0;
  double checkpoint_every_seconds = 600;
  std::int64_t checkpoint_keep = 2;
  double evaluate_every_epochs = 1;

  double acceptance_test_accuracy = 0;
  double acceptance_test_auc = 0;
  double acceptance_speedup_over_equal = 0;
  double acceptance_wait_fraction = 0;

  double join_seconds = 60;
  double step_seconds = 60;
  std::int64_t timeline_steps = 200;
  std::string log_level = "info";
};

const OptionTable<Job>& job_options();

// Reads a job file over the defaults. Relative paths in it are taken from the file's folder.
Result<Job> read_job(const std::filesystem::path& path);

// Sets keys from flags, after the file: {"optimizer.learning_rate", "0.1"}. Relative paths are taken from the current
// folder.
Status apply_flags(Job& job, const std::vector<std::pair<std::string, std::string>>& flags);

// Checks that need several keys at once, such as Nesterov without momentum.
Status check_job(const Job& job);

// Whether the job's network is synthetic (nn/synthetic_model.h). Nothing is learnt: weights stay as they are, and are
// neither evaluated nor kept.
bool is_synthetic(const Job& job);

// Whether the job's network looks rows up that servers have.
bool has_served_table(const Job& job);

// The whole job as YAML, every key with its value and its help beside it; read_job reads it back to the same job.
std::string format_job(const Job& job);

// "model.hidden_sizes is [32], was [16]": the keys under these prefixes whose values differ; empty where none does.
std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes);

// A short hash of all that must be equal on every rank.
std::string fingerprint(const Job& job);

}  // namespace motley::train
