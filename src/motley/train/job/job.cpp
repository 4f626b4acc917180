#include "motley/train/job/job.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <map>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/nn/ctr_models.h"
#include "motley/nn/synthetic_model.h"
#include "motley/train/job/renamed_keys.h"

namespace motley::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// Keys that hold a path; relative ones are taken from the job file's folder, and those of flags from the current one.
constexpr const char* kPathKeys[] = {
    "model.path", "data.train", "data.train_targets", "data.test",   "data.test_targets",
    "cluster",    "plan",       "batch_split.replay", "data.folder", "gradient_sync.token_file",
    "emulation",  "profile",    "data.token_file"};

constexpr std::int64_t kVersion = 2;
// Makes the key's value absolute where the key holds a path.
void resolve_path(Job& job, const std::string& key, const std::filesystem::path& folder) {
  if (std::find(std::begin(kPathKeys), std::end(kPathKeys), key) == std::end(kPathKeys)) {
    return;
  }
  for (const auto& entry : job_options().entries()) {
    if (entry.text.key == key) {
      std::string& value = job.*std::get<std::string Job::*>(entry.member);
      const bool is_word = value.empty() || (key == "plan" && value == kAutoPlan);
      value = is_word ? value : (folder / value).lexically_normal().string();
    }
  }
}

// Flattens nested maps to dotted keys; every scalar keeps its text and its line.
struct Scalar {
  std::string text;
  int line;
};

Status flatten(const YAML::Node& node, const std::string& prefix, const std::string& file,
               std::map<std::string, Scalar>& scalars) {
  const int line = node.Mark().line + 1;
  if (node.IsMap()) {
    for (const auto& item : node) {
      const std::string key = item.first.as<std::string>();
      MOTLEY_TRY(flatten(item.second, prefix.empty() ? key : prefix + "." + key, file, scalars));
    }
    return {};
  }
  Scalar scalar{"", line};
  if (node.IsSequence()) {
    for (const YAML::Node& item : node) {
      if (!item.IsScalar()) {
        return fail(ErrorCode::kInvalidInput, "{}:{}: {}: a list of numbers is accepted here, not nested values", file,
                    line, prefix);
      }
      scalar.text += (scalar.text.empty() ? "" : ", ") + item.Scalar();
    }
    scalar.text = "[" + scalar.text + "]";
  } else if (node.IsScalar()) {
    scalar.text = node.Scalar();
  }
  if (!scalars.emplace(prefix, scalar).second) {
    return fail(ErrorCode::kInvalidInput, "{}:{}: {} is given twice", file, line, prefix);
  }
  return {};
}

std::string quoted(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_of(":#{}[],&*!|>'\"%@`\n") == std::string::npos &&
                     text.front() != ' ' && text.back() != ' ' && text.front() != '-' && text.front() != '?';
  if (plain ||
      (!text.empty() && text.front() == '[' && text.find_first_not_of("[]0123456789.,-+e ") == std::string::npos)) {
    return text;
  }
  std::string escaped = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped + "\"";
}

}  // namespace

const OptionTable<Job>& job_options() {
  using enum OptionKind;
  static const OptionTable<Job> options = {
      {{"version", kInteger, "version of the job format", kVersion, kVersion}, &Job::version},
      {{"name", kText, "name of the job; run folders are named after it"}, &Job::name},
      {{"seed", kInteger, "seed of the initial weights, the order of the samples and dropout", 0}, &Job::seed},
      {{"model.name",
        kChoice,
        "network",
        -kNone,
        kNone,
        {"mlp", "cnn", "resnet18", "vgg11", "transformer", "ctrdnn", "2emb", "matchnet", "nce", "torchscript",
         "synthetic"}},
       &Job::model_name},
      {{"model.path", kText,
        "file of model.name torchscript (made by tools/motley-export), or the profile of model.name synthetic"},
       &Job::model_path},
      {{"model.hidden_sizes", kIntegers, "sizes of the hidden fully connected layers; empty: the network's own", 1},
       &Job::model_hidden_sizes},
      {{"model.num_layers", kInteger, "blocks of transformer; 0: 4", 0}, &Job::model_num_layers},
      {{"model.hidden_size", kInteger, "size of transformer's hidden state, for each token; 0: 128", 0},
       &Job::model_hidden_size},
      {{"model.num_heads", kInteger,
        "attention heads in each block of transformer, a divisor of model.hidden_size; 0: 4", 0},
       &Job::model_num_heads},
      {{"model.tie_embeddings", kBoolean, "transformer's output layer shares the weights of its token embedding"},
       &Job::model_tie_embeddings},
      {{"model.norm",
        kChoice,
        "normalisation of resnet18 and vgg11; auto: the network's own",
        -kNone,
        kNone,
        {"auto", "none", "batch", "group"}},
       &Job::model_norm},
      {{"model.dropout", kReal, "fraction of activations dropped in mlp, vgg11 and transformer", 0, 0.95},
       &Job::model_dropout},
      {{"model.dtype", kChoice, "type of weights and gradients", -kNone, kNone, {"float32", "float64"}},
       &Job::model_dtype},
      {{"model.input_shape", kIntegers, "shape of one sample; empty: the data's", 1}, &Job::model_input_shape},
      {{"model.outputs", kInteger, "outputs of the network; 0: the data's number of classes", 0}, &Job::model_outputs},
      {{"data.name",
        kChoice,
        "format of the data",
        -kNone,
        kNone,
        {"fashion-mnist", "idx", "csv", "npy", "text", "criteo", "clicks"}},
       &Job::data_name},
      {{"data.folder", kText, "folder of the four files of fashion-mnist (MNIST's have the same names)"},
       &Job::data_folder},
      {{"data.train", kText,
        "training features (idx, npy), table (csv) or text; empty with text: the one of Debian's package jargon-text"},
       &Job::data_train},
      {{"data.train_targets", kText, "training targets (idx, npy)"}, &Job::data_train_targets},
      {{"data.test", kText, "test features, table or text; empty: no evaluation, or with text by data.test_fraction"},
       &Job::data_test},
      {{"data.test_targets", kText, "test targets (idx, npy)"}, &Job::data_test_targets},
      {{"data.target", kText, "column of the target (csv)"}, &Job::data_target},
      {{"data.target_kind", kChoice, "what the target is", -kNone, kNone, {"class", "real"}}, &Job::data_target_kind},
      {{"data.drop_columns", kText, "columns that are neither feature nor target (csv), separated by commas"},
       &Job::data_drop_columns},
      {{"data.categorical_columns", kText,
        "columns whose values are categories, which ctrdnn, 2emb, matchnet and nce embed (csv), separated by commas"},
       &Job::data_categorical_columns},
      {{"data.max_malformed_fraction", kReal,
        "fraction of the lines that may be malformed and are skipped (csv, criteo)", 0, 1},
       &Job::data_max_malformed_fraction},
      {{"data.num_samples", kReal, "synthetic training samples; a tenth as many for the test (clicks)", 1, 4e9},
       &Job::data_num_samples},
      {{"data.num_categories", kReal, "different values of all categorical columns together (clicks)", 260, 1ULL << 32},
       &Job::data_num_categories},
      {{"data.zipf", kReal, "exponent of the Zipf distribution of the categories (clicks)", 0.1, 10}, &Job::data_zipf},
      {{"data.sequence_length", kInteger, "bytes of a sample (text)", 1, 1 << 20}, &Job::data_sequence_length},
      {{"data.test_fraction", kReal,
        "fraction of the text, at its end, that is test data where data.test is empty (text)", 0, 0.9},
       &Job::data_test_fraction},
      {{"data.normalise", kBoolean,
        "shift and scale features to mean 0 and deviation 1, as measured on the training data (not text)"},
       &Job::data_normalise},
      {{"data.server", kText,
        "host:port of the data server (`motley data-server`) that has the files; the other keys of the data are as "
        "there; "
        "empty: every worker has the files"},
       &Job::data_server},
      {{"data.token_file", kText,
        "file (mode 0600) with the data server's token; empty: that of the variable MOTLEY_TOKEN_FILE"},
       &Job::data_token_file},
      {{"data.prefetch", kInteger, "steps whose samples a worker reads ahead", 0, 64}, &Job::data_prefetch},
      {{"embedding.placement",
        kChoice,
        "where the embeddings of ctrdnn, 2emb, matchnet and nce are: server, on parameter servers "
        "(gradient_sync.servers, or one that is started for the job); replicated, all of them on every worker",
        -kNone,
        kNone,
        {"server", "replicated"}},
       &Job::embedding_placement},
      {{"embedding.num_embeddings", kInteger,
        "embeddings of the table, into which ids are folded; 0, only with server: as many as there are ids", 0},
       &Job::num_embeddings},
      {{"embedding.embedding_dim", kInteger, "values of an embedding; 0: the network's own, 10 or with nce 128", 0,
        4096},
       &Job::embedding_dim},
      {{"embedding.optimizer",
        kChoice,
        "server: optimizer of the embeddings; replicated: they are updated as all weights are",
        -kNone,
        kNone,
        {"adagrad", "adam", "sgd"}},
       &Job::embedding_optimizer},
      {{"embedding.learning_rate", kReal, "server: learning rate of the embeddings", 0}, &Job::embedding_learning_rate},
      {{"embedding.memory", kBytes,
        "server: memory for embeddings on each server, which keeps the others on disk (motley server --embedding-dir); "
        "0: all of them in memory",
        0},
       &Job::embedding_memory_bytes},
      {{"embedding.comm_dtype",
        kChoice,
        "server: type of embeddings and of their gradients on the wire; what it rounds away is lost",
        -kNone,
        kNone,
        {"float32", "bfloat16", "float16", "int8"}},
       &Job::embedding_comm_dtype},
      {{"embedding.prefetch", kBoolean, "server: ask for the next batch's embeddings while this one is computed"},
       &Job::embedding_prefetch},
      {{"embedding.cache_rows", kInteger,
        "server: hot embeddings that each worker caches, to use them in several steps; 0: none", 0, 1 << 30},
       &Job::embedding_cache_rows},
      {{"embedding.max_staleness", kInteger, "server: how many steps older than a step's own a cached embedding may be",
        0, 1 << 20},
       &Job::embedding_max_staleness},
      {{"global_batch_size", kInteger, "samples of one step, over all workers", 1, 1 << 30}, &Job::global_batch_size},
      {{"gradient_accumulation_steps", kInteger, "micro-batches into which a worker cuts its part of a step", 1, 4096},
       &Job::gradient_accumulation_steps},
      {{"epochs", kReal, "passes over the training data", 0, 1e6}, &Job::epochs},
      {{"steps", kInteger, "stop after this many steps; 0: by epochs", 0}, &Job::steps},
      {{"loss", kChoice, "loss, averaged over the samples of a step", -kNone, kNone, {"cross-entropy", "bce", "mse"}},
       &Job::loss},
      {{"optimizer.name", kChoice, "optimizer", -kNone, kNone, {"sgd", "adam", "adamw"}}, &Job::optimizer_name},
      {{"optimizer.learning_rate", kReal, "peak learning rate, which lr_scheduler scales", 0}, &Job::learning_rate},
      {{"optimizer.momentum", kReal, "momentum of sgd", 0, 0.99999}, &Job::momentum},
      {{"optimizer.nesterov", kBoolean, "Nesterov's form of the momentum"}, &Job::nesterov},
      {{"optimizer.weight_decay", kReal, "weight decay", 0}, &Job::weight_decay},
      {{"optimizer.betas", kReals, "decay rates of adam and adamw", 0, 0.9999999}, &Job::betas},
      {{"optimizer.epsilon", kReal, "added to adam's denominator", 0}, &Job::epsilon},
      {{"lr_scheduler.name", kChoice, "learning-rate scheduler", -kNone, kNone, {"constant", "step", "cosine"}},
       &Job::lr_scheduler_name},
      {{"lr_scheduler.warmup_steps", kInteger, "steps of linear warm-up", 0}, &Job::lr_scheduler_warmup_steps},
      {{"lr_scheduler.step_size", kInteger, "step: multiply by lr_scheduler.gamma every so many steps", 1},
       &Job::lr_scheduler_step_size},
      {{"lr_scheduler.gamma", kReal, "step: the factor", 0, 1}, &Job::lr_scheduler_gamma},
      {{"lr_scheduler.min_lr_ratio", kReal,
        "cosine: learning rate at the last step, as a fraction of optimizer.learning_rate", 0, 1},
       &Job::lr_scheduler_min_lr_ratio},
      {{"max_grad_norm", kReal, "clip the gradient's global norm to this; 0: no clipping", 0}, &Job::max_grad_norm},
      {{"precision", kChoice, "bfloat16: forward pass under autocast", -kNone, kNone, {"float32", "bfloat16"}},
       &Job::precision},
      {{"workers", kInteger, "worker processes; 0: those of the cluster file, else one", 0, 1024}, &Job::workers},
      {{"cluster", kText, "cluster file that describes the workers; empty: this machine"}, &Job::cluster},
      {{"plan", kText,
        "plan file (of `motley plan`) that says which layers each worker computes; auto: profile and plan first; "
        "empty: "
        "all of them"},
       &Job::plan},
      {{"profile", kText,
        "with a plan file: profile that the plan was made from, so that the run can replan and its page show the "
        "predicted step; empty: that of emulation"},
       &Job::profile},
      {{"replan", kBoolean,
        "a planned run whose profile is known moves to a better plan of the same workers when they are not as fast as "
        "that says"},
       &Job::replan},
      {{"emulation", kText,
        "with a plan file: profile whose times for its device types and layers the workers take, to try a plan for "
        "devices that are not here; empty: they are as fast as they are"},
       &Job::emulation},
      {{"device", kText, "cpu, cuda or cuda:N, where the cluster file does not say"}, &Job::device},
      {{"threads", kInteger, "compute threads of a worker, where the cluster file does not say", 1, 1024},
       &Job::threads},
      {{"deterministic", kBoolean, "only kernels that give the same bits from run to run"}, &Job::deterministic},
      {{"gradient_sync.method",
        kChoice,
        "gradient synchronisation: ring (all-reduce, in shared memory where that is possible) or parameter-server; "
        "auto: ring, or what is measured to be faster where gradient_sync.servers are given",
        -kNone,
        kNone,
        {"auto", "ring", "parameter-server", "shared-memory", "tcp-ring"}},
       &Job::gradient_sync_method},
      {{"gradient_sync.comm_dtype",
        kChoice,
        "type on the wire between hosts; parameter-server only: int8, top-k (what a gradient leaves out goes with the "
        "next one), or "
        "auto: what of float32, bfloat16 and int8 pays",
        -kNone,
        kNone,
        {"float32", "bfloat16", "float16", "int8", "top-k", "auto"}},
       &Job::gradient_sync_comm_dtype},
      {{"gradient_sync.top_k", kReal, "top-k: the fraction of a gradient's values that is sent", 1e-6, 0.5},
       &Job::gradient_sync_top_k},
      {{"gradient_sync.bucket_size", kBytes, "gradients are synchronised in buckets of about this size", 4096},
       &Job::gradient_sync_bucket_size},
      {{"gradient_sync.consistency",
        kChoice,
        "parameter-server: whether workers take each step together (bsp), may be gradient_sync.staleness steps ahead "
        "of the slowest "
        "(ssp), "
        "or any number of steps (async)",
        -kNone,
        kNone,
        {"bsp", "ssp", "async"}},
       &Job::gradient_sync_consistency},
      {{"gradient_sync.staleness", kInteger,
        "ssp: steps that a worker may be ahead of the slowest, 0 is bsp; async: likewise, but 0 sets no bound", 0,
        1 << 20},
       &Job::gradient_sync_staleness},
      {{"gradient_sync.servers", kText,
        "parameter-server, auto: servers to use, 'host:port, host:port'; empty: with parameter-server one is started "
        "on this machine for the job"},
       &Job::gradient_sync_servers},
      {{"gradient_sync.token_file", kText,
        "parameter-server, auto: file (mode 0600) with the servers' token; empty: that of the variable "
        "MOTLEY_TOKEN_FILE"},
       &Job::gradient_sync_token_file},
      {{"gradient_sync.tenant", kText,
        "parameter-server: whom the servers' token belongs to, where they tell tenants apart"},
       &Job::gradient_sync_tenant},
      {{"gradient_sync.placement",
        kChoice,
        "parameter-server: where gradients are summed: central at the first server, sharded over all, colocated beside "
        "the workers, "
        "hierarchical by rack first; auto: sharded, or with gradient_sync.racks what measured links make faster",
        -kNone,
        kNone,
        {"auto", "central", "sharded", "colocated", "hierarchical"}},
       &Job::gradient_sync_placement},
      {{"gradient_sync.racks", kIntegers,
        "parameter-server: for each worker which of gradient_sync.servers, from 0, is in its rack", 0},
       &Job::gradient_sync_racks},
      {{"gradient_sync.server_threads", kInteger,
        "parameter-server: threads of the server that is started for the job; 0: one a core, colocated: one", 0, 1024},
       &Job::gradient_sync_server_threads},
      {{"gradient_sync.chunk_size", kBytes, "parameter-server: gradients are summed in chunks of this size", 64,
        1 << 20},
       &Job::gradient_sync_chunk_size},
      {{"gradient_sync.overlap", kBoolean,
        "synchronise finished buckets while backward still runs; copy to and from GPUs while they compute"},
       &Job::gradient_sync_overlap},
      {{"batch_split.mode",
        kChoice,
        "how a step's samples are split among the workers: dynamic follows measured speed (and takes from a work queue "
        "under random delays)",
        -kNone,
        kNone,
        {"dynamic", "equal", "fixed", "replay", "work-queue"}},
       &Job::batch_split_mode},
      {{"batch_split.fixed", kIntegers, "fixed: samples of each worker in a full batch", 0}, &Job::batch_split_fixed},
      {{"batch_split.replay", kText, "replay: run folder whose recorded splits are used again"},
       &Job::batch_split_replay},
      {{"baseline.every", kInteger,
        "run baseline steps with the equal split every so many steps, to measure the gain in the same run; 0: never",
        0},
       &Job::baseline_every},
      {{"baseline.steps", kInteger, "baseline steps in a row", 1, 1000}, &Job::baseline_steps},
      {{"checkpoint.every_steps", kInteger, "checkpoint every so many steps; 0: by time only", 0},
       &Job::checkpoint_every_steps},
      {{"checkpoint.every", kSeconds, "checkpoint at least this often; 0: by steps only", 0},
       &Job::checkpoint_every_seconds},
      {{"checkpoint.keep", kInteger, "checkpoints kept; 0: none is written, not even at the end", 0, 1000},
       &Job::checkpoint_keep},
      {{"evaluate.every_epochs", kReal,
        "evaluate on the test data this often and at the end; 0: at the end only; -1: never", -1},
       &Job::evaluate_every_epochs},
      {{"acceptance.test_accuracy", kReal, "the summary says whether the test accuracy reached this; 0: not asked for",
        0, 1},
       &Job::acceptance_test_accuracy},
      {{"acceptance.test_auc", kReal, "the same for the area under the ROC curve on the test data, of two classes", 0,
        1},
       &Job::acceptance_test_auc},
      {{"acceptance.speedup_over_equal", kReal,
        "the same for the speed-up over the equal split, which baseline steps measure", 0},
       &Job::acceptance_speedup_over_equal},
      {{"acceptance.wait_fraction", kReal, "the same for the largest fraction of step time that a worker waits", 0, 1},
       &Job::acceptance_wait_fraction},
      {{"deadline.join", kSeconds, "how long workers may take to appear", 0.1, 86400}, &Job::join_seconds},
      {{"deadline.step", kSeconds, "how long a worker may be waited for within a step", 0.1, 86400},
       &Job::step_seconds},
      {{"timeline.steps", kInteger,
        "about how many steps are recorded in timeline.json: the first half of this number, the others spread over the "
        "run",
        0, 100000},
       &Job::timeline_steps},
      {{"log_level", kChoice, "how much is logged", -kNone, kNone, {"trace", "debug", "info", "warn", "error"}},
       &Job::log_level},
  };
  return options;
}

Result<Job> read_job(const std::filesystem::path& path) {
  MOTLEY_ASSIGN(const std::string text, read_file(path, 1 << 20));
  const std::string file = path.string();
  std::map<std::string, Scalar> scalars;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap() && !root.IsNull()) {
      return fail(ErrorCode::kInvalidInput, "{}: a job file is a list of 'key: value' lines", file);
    }
    MOTLEY_TRY(flatten(root, "", file, scalars));
  } catch (const YAML::Exception& problem) {
    return fail(ErrorCode::kInvalidInput, "{}:{}: not valid YAML: {}", file, problem.mark.line + 1, problem.msg);
  }
  scalars.erase("");
  std::vector<RenamedKey> renamed;
  std::ranges::copy_if(kRenamedKeys, std::back_inserter(renamed),
                       [&](const RenamedKey& key) { return scalars.contains(std::string(key.before)); });
  if (!renamed.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: a job file of version {}; accepted: version {}, in which {}", file,
                kVersion - 1, kVersion, to_string(renamed));
  }
  Job job;
  for (const auto& [key, scalar] : scalars) {
    if (Status set = job_options().set(job, key, scalar.text); !set) {
      return fail(set.error().within(fmt::format("{}:{}", file, scalar.line)));
    }
  }
  for (const auto& [key, scalar] : scalars) {
    resolve_path(job, key, std::filesystem::absolute(path).parent_path());
  }
  return job;
}

Status apply_flags(Job& job, const std::vector<std::pair<std::string, std::string>>& flags) {
  for (const auto& [key, text] : flags) {
    if (Status set = job_options().set(job, key, text); !set) {
      return fail(set.error().within("flag --" + flag_name(key)));
    }
    resolve_path(job, key, std::filesystem::current_path());
  }
  return {};
}

namespace {

// A name that becomes one folder below another.
Status check_folder_name(const char* key, const std::string& name) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 || std::strchr("._- ", c) != nullptr;
  };
  if (name.empty() || name.size() > 200 || name.front() == '.' || name.find('\0') != std::string::npos ||
      !std::ranges::all_of(name, is_plain)) {
    return fail(
        ErrorCode::kInvalidInput,
        "{}: '{}' is not the name of a folder; accepted: up to 200 letters, digits, spaces, '.', '_' and '-', not "
        "beginning with '.'",
        key, name);
  }
  return {};
}

}  // namespace

Status check_job(const Job& job) {
  const auto refuse = [](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  MOTLEY_TRY(check_folder_name("name", job.name));
  if (job.nesterov && (job.momentum == 0 || job.optimizer_name != "sgd")) {
    return refuse("optimizer.nesterov: true needs optimizer.name sgd and optimizer.momentum above 0");
  }
  if (job.gradient_sync_consistency != "bsp") {
    const std::string given = "gradient_sync.consistency: " + job.gradient_sync_consistency;
    if (job.gradient_sync_method != "parameter-server") {
      return refuse(
          fmt::format("{} needs gradient_sync.method parameter-server; accepted with gradient_sync.method {}: bsp",
                      given, job.gradient_sync_method));
    }
    if (job.max_grad_norm > 0) {
      return refuse(
          fmt::format("max_grad_norm: {} needs the gradient of all workers; accepted with {}: 0, as each "
                      "worker's gradient moves the weights by itself",
                      job.max_grad_norm, given));
    }
    if (job.batch_split_mode == "work-queue") {
      return refuse(
          fmt::format("batch_split.mode: work-queue needs all workers at the same step; accepted with {}: dynamic, "
                      "equal, fixed or replay",
                      given));
    }
  } else if (job.gradient_sync_staleness > 0) {
    return refuse(
        fmt::format("gradient_sync.staleness: {} is given, but gradient_sync.consistency is bsp; accepted: 0, or "
                    "gradient_sync.consistency ssp or async",
                    job.gradient_sync_staleness));
  }
  if (job.betas.size() != 2) {
    return refuse(
        fmt::format("optimizer.betas: {} numbers are given; accepted: two, such as [0.9, 0.999]", job.betas.size()));
  }
  if (job.model_name == "torchscript" && job.model_path.empty()) {
    return refuse("model.path: model.name torchscript needs the file; tools/motley-export writes one");
  }
  if (is_synthetic(job)) {
    const auto needs = [&](const std::string& text) { return refuse(text + " with model.name synthetic"); };
    if (job.model_path.empty()) return needs("model.path: empty; accepted: the profile to take it from,");
    if (job.plan.empty()) return needs("plan: none; accepted: a plan file or auto");
    if (job.model_dtype != "float32") {
      return needs(fmt::format("model.dtype: {}; accepted: float32", job.model_dtype));
    }
  }
  if (job.batch_split_mode == "replay" && job.batch_split_replay.empty()) {
    return refuse("batch_split.replay: batch_split.mode replay needs the run folder whose shares are used again");
  }
  for (const auto& [key, file] : {std::pair{"emulation", &job.emulation}, std::pair{"profile", &job.profile}}) {
    if (!file->empty() && (job.plan.empty() || job.plan == kAutoPlan)) {
      return refuse(fmt::format("{}: '{}' is given; accepted with a plan file (key plan)", key, *file));
    }
  }
  if (job.batch_split_mode == "fixed" && job.batch_split_fixed.empty() && job.plan.empty()) {
    return refuse("batch_split.fixed: batch_split.mode fixed needs the samples of each worker, such as [64, 128]");
  }
  if (job.epochs == 0 && job.steps == 0) {
    return refuse("epochs and steps are both 0; give one of them");
  }
  if (job.device != "cpu" && job.device != "cuda" && job.device.rfind("cuda:", 0) != 0) {
    return refuse(fmt::format("device: '{}' is not accepted; accepted: cpu, cuda or cuda:N", job.device));
  }
  const bool served_only = job.gradient_sync_comm_dtype == "int8" || job.gradient_sync_comm_dtype == "top-k" ||
                           job.gradient_sync_comm_dtype == "auto";
  if (job.gradient_sync_method != "parameter-server" && served_only) {
    return refuse(
        fmt::format("gradient_sync.comm_dtype: {} needs gradient_sync.method parameter-server; accepted with {}: "
                    "float32 and bfloat16",
                    job.gradient_sync_comm_dtype, job.gradient_sync_method));
  }
  if (job.gradient_sync_consistency != "bsp" && served_only) {
    return refuse(fmt::format(
        "gradient_sync.comm_dtype: {} needs all workers at the same step; accepted with gradient_sync.consistency {}: "
        "float32, bfloat16 and float16",
        job.gradient_sync_comm_dtype, job.gradient_sync_consistency));
  }
  if (job.data_name == "fashion-mnist" && job.data_folder.empty()) {
    return refuse("data.folder: fashion-mnist needs the folder of its four files");
  }
  if (job.model_name == "transformer" && job.data_name != "text") {
    return refuse(
        fmt::format("model.name: transformer reads tokens; accepted with it: data.name text, not {}", job.data_name));
  }
  if (job.data_name == "text" && job.model_name != "transformer" && job.model_name != "torchscript") {
    return refuse(fmt::format("model.name: {} reads no tokens; accepted with data.name text: transformer, torchscript",
                              job.model_name));
  }
  const bool looks_up = nn::is_ctr_model(job.model_name);
  const bool has_categories =
      job.data_name == "criteo" || job.data_name == "clicks" || !job.data_categorical_columns.empty();
  if (looks_up != has_categories && job.model_name != "torchscript") {
    return refuse(looks_up
                      ? fmt::format("data.name: {} has no categories for {} to look up; accepted: csv with "
                                    "data.categorical_columns, criteo, clicks",
                                    job.data_name, job.model_name)
                      : fmt::format("model.name: {} looks no categories up; accepted with this data: ctrdnn, 2emb, "
                                    "matchnet, nce",
                                    job.model_name));
  }
  if (!job.data_categorical_columns.empty() && job.data_name != "csv") {
    return refuse(fmt::format("data.categorical_columns: accepted with data.name csv, not {}", job.data_name));
  }
  if (has_served_table(job)) {
    const auto needs = [&](const std::string& key, const std::string& given, const std::string& accepted) {
      return refuse(fmt::format("{}: {}; accepted with embedding.placement server: {}", key, given, accepted));
    };
    if (job.gradient_sync_consistency != "bsp")
      return needs("gradient_sync.consistency", job.gradient_sync_consistency, "bsp");
    if (job.max_grad_norm > 0)
      return needs("max_grad_norm", fmt::format("{}", job.max_grad_norm), "0, as servers move the rows");
    if (job.gradient_sync_placement == "colocated" || !job.gradient_sync_racks.empty()) {
      return needs("gradient_sync.placement", job.gradient_sync_placement,
                   "servers that are not beside workers, without racks");
    }
    if (job.embedding_max_staleness > 0 && job.embedding_cache_rows == 0) {
      return refuse(
          fmt::format("embedding.max_staleness: {} is given, but embedding.cache_rows is 0; accepted: 0, or "
                      "embedding.cache_rows that workers keep so long",
                      job.embedding_max_staleness));
    }
    if (job.embedding_cache_rows > 0 && job.embedding_max_staleness == 0) {
      return refuse(fmt::format(
          "embedding.cache_rows: {} is given, but embedding.max_staleness is 0, so that no step would use them "
          "again; accepted: 0, or embedding.max_staleness of 1 or more",
          job.embedding_cache_rows));
    }
  } else if (looks_up) {
    const auto needs = [&](const std::string& key, const std::string& accepted) {
      return refuse(fmt::format(
          "{}: accepted with embedding.placement replicated: {}, as a worker has all rows in memory", key, accepted));
    };
    if (job.embedding_memory_bytes > 0) return needs("embedding.memory", "0");
    if (job.embedding_comm_dtype != "float32") return needs("embedding.comm_dtype", "float32");
    if (job.embedding_cache_rows > 0 || job.embedding_max_staleness > 0) return needs("embedding.cache_rows", "0");
  }
  const bool has_file = job.data_name != "fashion-mnist" && job.data_name != "text" && job.data_name != "clicks";
  if (has_file && job.data_train.empty()) {
    return refuse(fmt::format("data.train: data.name {} needs the training file", job.data_name));
  }
  if (job.data_name == "csv" && job.data_target.empty()) {
    return refuse("data.target: data.name csv needs the name of the target's column");
  }
  if ((job.data_name == "idx" || job.data_name == "npy") && job.data_train_targets.empty()) {
    return refuse(
        fmt::format("data.train_targets: data.name {} needs the file of the training targets", job.data_name));
  }
  return {};
}

bool is_synthetic(const Job& job) {
  return job.model_name == nn::kSyntheticModel;
}

bool has_served_table(const Job& job) {
  return nn::is_ctr_model(job.model_name) && job.embedding_placement == "server";
}

std::string format_job(const Job& job) {
  std::string text = "# The effective job: every key with the value that was used.\n";
  std::string section;
  for (const auto& entry : job_options().entries()) {
    std::string key = entry.text.key;
    const std::size_t dot = key.find('.');
    const std::string own_section = dot == std::string::npos ? "" : key.substr(0, dot);
    if (own_section != section && !own_section.empty()) {
      text += own_section + ":\n";
    }
    section = own_section;
    if (!section.empty()) {
      key = "  " + key.substr(dot + 1);
    }
    text += fmt::format("{}: {}\n", key, quoted(job_options().get(job, entry)));
  }
  return text;
}

std::string changed_keys(const Job& before, const Job& now, const std::vector<std::string>& prefixes) {
  std::string text;
  for (const auto& entry : job_options().entries()) {
    const std::string was = job_options().get(before, entry);
    const std::string is = job_options().get(now, entry);
    const bool asked = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& prefix) { return entry.text.key.starts_with(prefix); });
    if (asked && was != is) {
      text += fmt::format("{}{} is {}, was {}", text.empty() ? "" : "; ", entry.text.key, quoted(is), quoted(was));
    }
  }
  return text;
}

std::string fingerprint(const Job& job) {
  std::string text;
  for (const auto& entry : job_options().entries()) {
    const auto* const end = std::end(kPathKeys);
    if (std::find(std::begin(kPathKeys), end, entry.text.key) == end) {  // paths may differ between hosts
      text += entry.text.key + "=" + job_options().get(job, entry) + "\n";
    }
  }
  return fmt::format("{:016x}", mix({crc32c(text), crc32c("motley" + text), text.size()}));
}

}  // namespace motley::train
