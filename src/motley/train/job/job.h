// What to train and how: the job file (job.yaml), its keys and defaults. Every key is also a flag of `motley train`.
// Keys with a common prefix make a spec of that name, whose fields have the words of the keys: gradient_sync.comm_dtype
// is job.gradient_sync.comm_dtype.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/result.h"
#include "motley/net/certificates.h"
#include "motley/serial/options.h"

namespace motley::train {

// The network, key model.
struct ModelSpec {
  std::string name = "cnn";
  std::string path;
  std::vector<std::int64_t> hidden_sizes;
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_heads = 0;
  bool tie_embeddings = false;
  std::string norm = "auto";
  double dropout = 0;
  std::string dtype = "float32";
  std::vector<std::int64_t> input_shape;
  std::int64_t outputs = 0;
};

// The embeddings of CTR models, key embedding.
struct EmbeddingSpec {
  std::string placement = "server";
  std::int64_t num_embeddings = 1'000'001;
  std::int64_t embedding_dim = 0;
  std::string optimizer = "adagrad";
  double learning_rate = 0.05;
  double memory = 0;  // bytes
  std::string comm_dtype = "float32";
  bool prefetch = true;
  double device_memory = 256e6;  // bytes, on each accelerator
  std::int64_t cache_rows = 0;
  std::int64_t max_staleness = 0;
};

// The training and test data, key data.
struct DataSpec {
  std::string name = "fashion-mnist";
  std::string folder = "/usr/share/datasets/fashion-mnist";
  std::string train;
  std::string train_targets;
  std::string test;
  std::string test_targets;
  std::string target;
  std::string target_kind = "class";
  std::int64_t num_classes = 0;
  std::string drop_columns;
  std::string categorical_columns;
  std::string one_hot_columns;
  std::string missing = "error";
  bool missing_indicator = false;
  double max_malformed_fraction = 0;
  std::string channels = "auto";
  std::vector<std::int64_t> image_size = {224, 224};
  bool grayscale = false;
  std::int64_t crop_padding = 0;
  bool horizontal_flip = false;
  double num_samples = 1e6;
  double num_categories = 1e6;
  double zipf = 1.05;
  std::string token_dtype = "auto";
  std::int64_t vocab_size = 0;
  std::int64_t sequence_length = 0;
  double test_fraction = 0.1;
  bool normalise = true;
  std::string server;
  std::string token_file;
  std::int64_t prefetch = 2;
  std::int64_t threads = 1;
};

// How long and on how much at once is trained; keys without a prefix.
struct TrainingSpec {
  std::int64_t global_batch_size = 256;
  std::int64_t gradient_accumulation_steps = 1;
  double epochs = 1;
  std::int64_t steps = 0;
  std::string loss = "cross-entropy";
};

// Key optimizer.
struct OptimizerSpec {
  std::string name = "sgd";
  double learning_rate = 0.05;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  std::vector<double> betas = {0.9, 0.999};
  double epsilon = 1e-8;
};

// Key lr_scheduler.
struct LrSchedulerSpec {
  std::string name = "constant";
  std::int64_t warmup_steps = 0;
  std::int64_t step_size = 1000;
  double gamma = 0.1;
  double min_lr_ratio = 0;
};

// How a step's samples are split among the workers, key batch_split.
struct BatchSplitSpec {
  std::string mode = "dynamic";
  std::vector<std::int64_t> fixed;
  std::string replay;
};

// Steps with the equal split, for comparison, key baseline.
struct BaselineSpec {
  std::int64_t every = 0;
  std::int64_t steps = 3;
};

inline constexpr const char* kAutoPlan = "auto";  // in ExecutionSpec::plan: the best that there is, found first

// Who computes, by which plan and on what; keys without a prefix.
struct ExecutionSpec {
  std::int64_t workers = 0;
  std::string elastic;  // "MIN:MAX"
  std::int64_t replacements = 3;
  std::string cluster;
  std::string plan;
  std::string profile;
  bool replan = true;
  std::string emulation;
  std::string device = "auto";
  std::int64_t threads = 1;
  bool deterministic = true;

  struct Range {
    int min = 0;
    int max = 0;
  };
  // Of a text that is accepted (parse_elastic); 0 and 0 for an empty one.
  Range elastic_range() const { return elastic.empty() ? Range() : parse_elastic(elastic).value(); }
  static Result<Range> parse_elastic(const std::string& text);
};

// How long others are waited for, key deadline.
struct DeadlineSpec {
  double join = 60;     // seconds
  double step = 60;     // seconds
  double silence = 0;   // seconds; 0: by itself
  double progress = 0;  // seconds; 0: by itself
};

// What goes between hosts, key network.
struct NetworkSpec {
  std::string encryption = "auto";
  net::CertificateFiles tls;
};

// How gradients are synchronised, key gradient_sync.
struct GradientSyncSpec {
  std::string method = "auto";
  std::string comm_dtype = "float32";
  double top_k = 0.01;
  double bucket_size = 4e6;  // bytes
  std::string consistency = "bsp";
  std::int64_t staleness = 0;
  std::string servers;
  std::string token_file;
  std::string tenant = "local";
  std::string placement = "auto";
  std::string replication = "auto";
  std::vector<std::int64_t> racks;
  std::int64_t server_threads = 0;
  double chunk_size = 32 << 10;  // bytes
  bool overlap = true;
};

// Key checkpoint.
struct CheckpointSpec {
  std::int64_t every_steps = 0;
  double every = 600;  // seconds
  std::int64_t keep = 2;
};

// Key evaluate.
struct EvaluateSpec {
  double every_epochs = 1;  // -1: never, not at the end either
};

// What the summary holds the run to, key acceptance; 0: not asked for.
struct AcceptanceSpec {
  double test_accuracy = 0;
  double test_auc = 0;
  double speedup_over_equal = 0;
  double wait_fraction = 0;
};

// Key timeline.
struct TimelineSpec {
  std::int64_t steps = 200;
};

inline constexpr std::int64_t kJobVersion = 2;

struct Job {
  std::int64_t version = kJobVersion;
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
  NetworkSpec network;
  TimelineSpec timeline;
  std::string log_level = "info";

  static const OptionTable<Job>& options();
};

// Reads a job file over the defaults. Relative paths in it are taken from the file's folder.
Result<Job> read_job(const std::filesystem::path& path);

// Sets keys from flags, after the file: {"optimizer.learning_rate", "0.1"}. Relative paths are taken from the current
// folder.
Status apply_flags(Job& job, const std::vector<std::pair<std::string, std::string>>& flags);

// Whether the keys agree, as far as they can be told without reading what they name.
Status check_job(const Job& job);

// Whether samples are tokens, or rows of a table with named columns.
bool has_tokens(const DataSpec& data);
bool has_columns(const DataSpec& data);

// Whether the job's network is synthetic (model.name synthetic). Nothing is learnt: weights stay as they are, and are
// neither evaluated nor kept.
bool is_synthetic(const Job& job);

// Whether the embeddings of the job's network are on servers.
bool has_served_table(const Job& job);

// The whole job as YAML, every key with its value; read_job reads it back to the same job.
std::string format_job(const Job& job);

// "model.hidden_sizes is [32], was [16]": the keys under these prefixes whose values differ; empty where none does.
std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes);

// The keys with defaults and help as Markdown, for docs/reference/job.md.
std::string document_job();
// The same keys as a JSON Schema of the YAML file (nested as the dots say), for docs/schema/job.schema.json. Values
// that a unit may follow, such as times and sizes, may be numbers or texts.
std::string job_schema();

// All that must be equal on every rank, as a fingerprint of net::Claim: the keys that are not at their defaults, but
// for paths, and a checksum of the plan's text where there is one. A checksum of that where it is too long.
std::string fingerprint(const Job& job, std::string_view plan = {});

// As key network says. Errors name its keys.
Result<net::Encryption> read_encryption(const Job& job);

}  // namespace motley::train
