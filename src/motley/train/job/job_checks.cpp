// What keys of a job say together: the rules that they may break, each with what would be accepted.
#include <algorithm>
#include <initializer_list>
#include <vector>

#include "motley/base/os/file.h"
#include "motley/cluster/cluster.h"
#include "motley/model/model_names.h"
#include "motley/train/job/job.h"

namespace motley::train {
namespace {

struct Rule {
  bool is_broken;
  std::string message;
};

Status check(std::initializer_list<Rule> rules) {
  for (const Rule& rule : rules) {
    if (rule.is_broken) return fail(ErrorCode::kInvalidInput, "{}", rule.message);
  }
  return {};
}

Status check_optimizer(const OptimizerSpec& optimizer) {
  return check({{optimizer.nesterov && (optimizer.momentum == 0 || optimizer.name != "sgd"),
                 "optimizer.nesterov: true needs optimizer.name sgd and optimizer.momentum above 0"},
                {optimizer.betas.size() != 2,
                 fmt::format("optimizer.betas: {} numbers are given; accepted: two, such as [0.9, 0.999]",
                             optimizer.betas.size())}});
}

Status check_gradient_sync(const GradientSyncSpec& sync) {
  const bool is_served = sync.method == "parameter-server";
  const bool is_together = sync.consistency == "bsp";
  const bool is_lossy = sync.comm_dtype == "int8" || sync.comm_dtype == "top-k" || sync.comm_dtype == "auto";
  return check(
      {{!is_together && !is_served,
        fmt::format("gradient_sync.consistency: {} needs gradient_sync.method parameter-server; accepted with "
                    "gradient_sync.method {}: bsp",
                    sync.consistency, sync.method)},
       {is_together && sync.staleness > 0,
        fmt::format("gradient_sync.staleness: {} is given, but gradient_sync.consistency is bsp; accepted: 0, or "
                    "gradient_sync.consistency ssp or async",
                    sync.staleness)},
       {is_lossy && !is_served,
        fmt::format("gradient_sync.comm_dtype: {} needs gradient_sync.method parameter-server; accepted with {}: "
                    "float32 and bfloat16",
                    sync.comm_dtype, sync.method)},
       {is_lossy && !is_together,
        fmt::format("gradient_sync.comm_dtype: {} needs all workers at the same step; accepted with "
                    "gradient_sync.consistency {}: float32, bfloat16 and float16",
                    sync.comm_dtype, sync.consistency)}});
}

// Where workers are at different steps, nothing may need the gradient or the step of all of them.
Status check_asynchronous(const Job& job) {
  const std::string& consistency = job.gradient_sync.consistency;
  if (consistency == "bsp") return {};
  return check(
      {{job.max_grad_norm > 0,
        fmt::format("max_grad_norm: {} needs the gradient of all workers; accepted with gradient_sync.consistency: {}: "
                    "0, as the server applies each worker's gradient by itself",
                    job.max_grad_norm, consistency)},
       {job.batch_split.mode == "work-queue",
        fmt::format("batch_split.mode: work-queue needs all workers at the same step; accepted with "
                    "gradient_sync.consistency: {}: dynamic, equal, fixed or replay",
                    consistency)}});
}

// What goes on where a worker is lost.
Status check_elastic(const Job& job) {
  const std::string& text = job.execution.elastic;
  if (text.empty()) return {};
  MOTLEY_ASSIGN(const ExecutionSpec::Range range, ExecutionSpec::parse_elastic(text));
  const GradientSyncSpec& sync = job.gradient_sync;
  return check(
      {{job.execution.workers > range.max,
        fmt::format("workers: {}; accepted with elastic {}: up to {}", job.execution.workers, text, range.max)},
       {job.execution.device != "cpu" && job.execution.device != "auto",
        fmt::format("device: {}; accepted with elastic: cpu, which auto is then", job.execution.device)},
       {sync.method == "auto" && !sync.servers.empty(),
        "gradient_sync.method: auto, with gradient_sync.servers; accepted with elastic: parameter-server, or auto "
        "without gradient_sync.servers"},
       {sync.consistency != "bsp",
        fmt::format("gradient_sync.consistency: {}; accepted with elastic: bsp", sync.consistency)},
       {sync.placement == "colocated",
        "gradient_sync.placement: colocated; accepted with elastic: auto, central, sharded, hierarchical"},
       {sync.replication == "on" && (sync.placement == "hierarchical" || !sync.racks.empty()),
        "gradient_sync.replication: on; accepted with gradient_sync.racks: auto, off, as servers of racks keep no "
        "others' state"},
       {sync.comm_dtype == "int8" || sync.comm_dtype == "top-k" || sync.comm_dtype == "auto",
        fmt::format("gradient_sync.comm_dtype: {}; accepted with elastic: float32, bfloat16 and float16",
                    sync.comm_dtype)},
       {has_served_table(job), "embedding.placement: server; accepted with elastic: replicated"},
       {job.batch_split.mode == "work-queue" || job.batch_split.mode == "replay",
        fmt::format("batch_split.mode: {}; accepted with elastic: dynamic, equal, fixed", job.batch_split.mode)}});
}

Status check_model(const Job& job) {
  const ModelSpec& model = job.model;
  const bool is_made_up = is_synthetic(job);
  return check({{model.name == "exported" && model.path.empty(),
                 "model.path: model.name exported needs the .pt2 file; motley export writes one"},
                {is_made_up && model.path.empty(),
                 "model.path: empty; accepted: the profile to take it from, with model.name synthetic"},
                {is_made_up && job.execution.plan.empty(),
                 "plan: none; accepted: a plan file or auto with model.name synthetic"},
                {is_made_up && model.dtype != "float32",
                 fmt::format("model.dtype: {}; accepted: float32 with model.name synthetic", model.dtype)}});
}

Status check_execution(const ExecutionSpec& execution) {
  const bool has_plan_file = !execution.plan.empty() && execution.plan != kAutoPlan;
  const std::string& device = execution.device;
  return check({{!execution.emulation.empty() && !has_plan_file,
                 fmt::format("emulation: '{}' is given; accepted with a plan file (key plan)", execution.emulation)},
                {!execution.profile.empty() && !has_plan_file,
                 fmt::format("profile: '{}' is given; accepted with a plan file (key plan)", execution.profile)},
                {!cluster::names_device(device),
                 fmt::format("device: '{}' is not accepted; accepted: auto, cpu, cuda, xpu, mps or emulated, with or "
                             "without a number as in cuda:1",
                             device)}});
}

// Whether the network reads what the data has: tokens, categories, or neither.
Status check_inputs_of_model(const Job& job) {
  const std::string& model = job.model.name;
  const std::string& data = job.data.name;
  const bool reads_all = model == "exported";
  const bool needs_categories = model::is_ctr_model(model);
  const bool has_categories = data == "criteo" || data == "clicks" || !job.data.categorical_columns.empty();
  return check(
      {{model == "transformer" && !has_tokens(job.data),
        fmt::format("model.name: transformer reads tokens; accepted with it: data.name text or tokens, not {}", data)},
       {!reads_all && has_tokens(job.data) && model != "transformer",
        fmt::format("model.name: {} reads no tokens; accepted with data.name {}: transformer, exported", model, data)},
       {!reads_all && needs_categories && !has_categories,
        fmt::format(
            "data.name: {} has no categories for {} to look up; accepted: a table with data.categorical_columns, "
            "criteo, clicks",
            data, model)},
       {!reads_all && has_categories && !needs_categories,
        fmt::format("model.name: {} looks no categories up; accepted with this data: ctrdnn, 2emb, matchnet, nce, or, "
                    "of a table, data.one_hot_columns in place of data.categorical_columns",
                    model)}});
}

// Keys that say something of some formats only, where they are given with another one.
Status check_keys_of_format(const DataSpec& data) {
  struct Key {
    const char* name;
    bool is_given;
    std::vector<const char*> formats;
  };
  const DataSpec defaults;
  for (const Key& key : std::initializer_list<Key>{
           {"categorical_columns", !data.categorical_columns.empty(), {"csv", "parquet", "arrow"}},
           {"one_hot_columns", !data.one_hot_columns.empty(), {"csv", "parquet", "arrow"}},
           {"missing", data.missing != "error", {"csv", "parquet", "arrow"}},
           {"missing_indicator", data.missing_indicator, {"csv", "parquet", "arrow"}},
           {"num_classes", data.num_classes != 0, {"idx", "npy", "csv", "parquet", "arrow"}},
           {"channels", data.channels != "auto", {"npy"}},
           {"image_size", data.image_size != defaults.image_size, {"image-folder"}},
           {"grayscale", data.grayscale, {"image-folder"}},
           {"crop_padding", data.crop_padding != 0, {"fashion-mnist", "idx", "npy", "image-folder"}},
           {"horizontal_flip", data.horizontal_flip, {"fashion-mnist", "idx", "npy", "image-folder"}},
           {"token_dtype", data.token_dtype != "auto", {"tokens"}},
           {"vocab_size", data.vocab_size != 0, {"tokens"}},
           {"sequence_length", data.sequence_length != 0, {"text", "tokens"}}}) {
    if (key.is_given && std::ranges::find(key.formats, data.name) == key.formats.end()) {
      return fail(ErrorCode::kInvalidInput, "data.{}: accepted with data.name {}, not {}", key.name,
                  fmt::join(key.formats, ", "), data.name);
    }
  }
  return {};
}

Status check_data_keys(const DataSpec& data) {
  const std::string& name = data.name;
  const bool has_file = name != "fashion-mnist" && name != "text" && name != "clicks";
  return check(
      {{name == "fashion-mnist" && data.folder.empty(),
        "data.folder: fashion-mnist needs the folder of its four files"},
       {data.missing_indicator && (data.missing == "error" || data.missing == "drop"),
        fmt::format("data.missing_indicator: accepted with data.missing mean, median or zero, not {}", data.missing)},
       {data.image_size.size() > 2 || data.image_size.empty(),
        fmt::format("data.image_size: {} numbers are given; accepted: height and width, such as [224, 224], or one for "
                    "both",
                    data.image_size.size())},
       {data.target_kind == "label" && name != "idx" && name != "npy" && !has_columns(data),
        fmt::format("data.target_kind: label is accepted with data.name idx, npy, csv, parquet and arrow, not {}",
                    name)},
       {has_file && data.train.empty(), fmt::format("data.train: data.name {} needs the training file", name)},
       {has_columns(data) && data.target.empty(),
        fmt::format("data.target: data.name {} needs the name of the target's column", name)},
       {(name == "idx" || name == "npy") && data.train_targets.empty(),
        fmt::format("data.train_targets: data.name {} needs the file of the training targets", name)}});
}

Status check_served_embeddings(const Job& job) {
  const EmbeddingSpec& embedding = job.embedding;
  const auto needs = [](const std::string& key, const std::string& given, const std::string& accepted) {
    return fmt::format("{}: {}; accepted with embedding.placement server: {}", key, given, accepted);
  };
  const bool has_accelerator_memory = embedding.device_memory > 0 && job.execution.device != "cpu";
  return check(
      {{job.gradient_sync.consistency != "bsp",
        needs("gradient_sync.consistency", job.gradient_sync.consistency, "bsp")},
       {job.max_grad_norm > 0,
        needs("max_grad_norm", fmt::format("{}", job.max_grad_norm), "0, as servers update the embeddings")},
       {job.gradient_sync.placement == "colocated" || !job.gradient_sync.racks.empty(),
        needs("gradient_sync.placement", job.gradient_sync.placement,
              "servers that are not beside workers, without racks")},
       {embedding.max_staleness > 0 && embedding.cache_rows == 0 && !has_accelerator_memory,
        fmt::format("embedding.max_staleness: {} is given, but embedding.cache_rows is 0{}; accepted: 0, or "
                    "embedding.cache_rows that workers keep so long, or accelerators with embedding.device_memory",
                    embedding.max_staleness,
                    embedding.device_memory > 0 ? ", and device: cpu" : " and embedding.device_memory, too")},
       {embedding.cache_rows > 0 && embedding.max_staleness == 0,
        fmt::format("embedding.cache_rows: {} is given, but embedding.max_staleness is 0, so that no step would use "
                    "them again; accepted: 0, or embedding.max_staleness of 1 or more",
                    embedding.cache_rows)}});
}

Status check_replicated_embeddings(const EmbeddingSpec& embedding) {
  const auto needs = [](const std::string& key, const std::string& accepted) {
    return fmt::format("{}: accepted with embedding.placement replicated: {}, as a worker has all rows in memory", key,
                       accepted);
  };
  return check({{embedding.memory > 0, needs("embedding.memory", "0")},
                {embedding.comm_dtype != "float32", needs("embedding.comm_dtype", "float32")},
                {embedding.cache_rows > 0 || embedding.max_staleness > 0, needs("embedding.cache_rows", "0")}});
}

}  // namespace

Status check_job(const Job& job) {
  for (const auto& [key, name] :
       {std::pair{"name", &job.name}, std::pair{"gradient_sync.tenant", &job.gradient_sync.tenant}}) {
    if (const Status plain = check_folder_name(*name); !plain) return fail(plain.error().within(key));
  }
  MOTLEY_TRY(check_optimizer(job.optimizer));
  MOTLEY_TRY(check_gradient_sync(job.gradient_sync));
  MOTLEY_TRY(check_asynchronous(job));
  MOTLEY_TRY(check_model(job));
  MOTLEY_TRY(check({{job.batch_split.mode == "replay" && job.batch_split.replay.empty(),
                     "batch_split.replay: batch_split.mode replay needs the run folder whose shares are used again"}}));
  MOTLEY_TRY(check_execution(job.execution));
  MOTLEY_TRY(check_elastic(job));
  MOTLEY_TRY(
      check({{job.batch_split.mode == "fixed" && job.batch_split.fixed.empty() && job.execution.plan.empty(),
              "batch_split.fixed: batch_split.mode fixed needs the samples of each worker, such as [64, 128]"},
             {job.training.epochs == 0 && job.training.steps == 0, "epochs and steps are both 0; give one of them"},
             {job.baseline.every > 0 && job.baseline.every <= job.baseline.steps,
              fmt::format("baseline.every: {}, of which baseline.steps {} leave no step with the job's own split; "
                          "accepted: 0, or at least {}",
                          job.baseline.every, job.baseline.steps, job.baseline.steps + 1)}}));
  MOTLEY_TRY(check_inputs_of_model(job));
  MOTLEY_TRY(check_keys_of_format(job.data));
  MOTLEY_TRY(check_data_keys(job.data));
  if (!model::is_ctr_model(job.model.name)) return {};
  return has_served_table(job) ? check_served_embeddings(job) : check_replicated_embeddings(job.embedding);
}

bool has_tokens(const DataSpec& data) {
  return data.name == "text" || data.name == "tokens";
}

bool has_columns(const DataSpec& data) {
  return data.name == "csv" || data.name == "parquet" || data.name == "arrow";
}

bool is_synthetic(const Job& job) {
  return job.model.name == model::kSyntheticModel;
}

bool has_served_table(const Job& job) {
  return model::is_ctr_model(job.model.name) && job.embedding.placement == "server";
}

}  // namespace motley::train
