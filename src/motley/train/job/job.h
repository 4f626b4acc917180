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
  std::int64_t version = 1;
  std::string name = "job";
  std::int64_t seed = 1;

  std::string model_name = "cnn";
  std::string model_path;
  std::vector<std::int64_t> model_hidden;
  std::int64_t model_layers = 0;
  std::int64_t model_width = 0;
  std::int64_t model_heads = 0;
  bool model_tied = false;
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
  std::string data_leave_out;
  std::string data_categories;
  double data_malformed_share = 0;
  double data_samples = 1e6;
  double data_values = 1e6;
  double data_zipf = 1.05;
  std::int64_t data_sequence = 64;
  double data_test_share = 0.1;
  bool data_normalise = true;
  std::string data_node;
  std::string data_node_token;
  std::int64_t data_read_ahead = 2;

  std::string tables_place = "server";
  std::int64_t tables_rows = 1'000'001;
  std::int64_t tables_dimension = 0;
  std::string tables_optimizer = "adagrad";
  double tables_learning_rate = 0.05;
  double tables_memory_bytes = 0;
  std::string tables_wire = "float32";
  bool tables_prefetch = true;
  std::int64_t tables_cache_rows = 0;
  std::int64_t tables_cache_steps = 0;

  std::int64_t batch = 256;
  std::int64_t accumulation = 1;
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
  std::string schedule_name = "constant";
  std::int64_t schedule_warmup_steps = 0;
  std::int64_t schedule_every_steps = 1000;
  double schedule_factor = 0.1;
  double schedule_final_fraction = 0;
  double clip_norm = 0;
  std::string precision = "float32";

  std::int64_t workers = 0;
  std::string cluster;
  std::string plan;
  std::string profile;
  bool adapt = true;
  std::string emulation;
  std::string device = "cpu";
  std::int64_t threads = 1;
  bool deterministic = true;

  std::string exchange_method = "auto";
  std::string exchange_wire = "float32";
  double exchange_top_k = 0.01;
  double exchange_bucket_bytes = 4e6;
  bool exchange_overlap = true;
  std::string exchange_consistency = "bsp";
  std::int64_t exchange_staleness = 0;
  std::string exchange_servers;
  std::string exchange_server_token;
  std::string exchange_tenant = "local";
  std::string exchange_placement = "auto";
  std::vector<std::int64_t> exchange_racks;
  std::int64_t exchange_server_cores = 0;
  double exchange_chunk_bytes = 32 << 10;

  std::string shares = "dynamic";
  std::vector<std::int64_t> shares_fixed;
  std::string shares_replay;
  std::int64_t control_every = 0;
  std::int64_t control_steps = 3;

  std::int64_t checkpoint_every_steps = 0;
  double checkpoint_every_seconds = 600;
  std::int64_t checkpoint_keep = 2;
  double evaluate_every_epochs = 1;

  double goal_test_accuracy = 0;
  double goal_test_auc = 0;
  double goal_speedup_over_equal = 0;
  double goal_worst_wait_share = 0;

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

// Whether the job's network is only imitated (nn/imitation.h). Nothing is learnt: weights stay as they are, and are
// neither evaluated nor kept.
bool imitates(const Job& job);

// Whether the job's network looks rows up that servers have.
bool has_served_table(const Job& job);

// The whole job as YAML, every key with its value and its help beside it; read_job reads it back to the same job.
std::string format_job(const Job& job);

// "model.hidden is [32], was [16]": the keys under these prefixes whose values differ; empty where none does.
std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes);

// A short hash of all that must be equal on every rank.
std::string fingerprint(const Job& job);

}  // namespace motley::train
