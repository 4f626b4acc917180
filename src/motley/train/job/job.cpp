#include "motley/train/job/job.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "motley/base/os/file.h"
#include "motley/base/random.h"
#include "motley/nn/click_networks.h"
#include "motley/nn/imitation.h"

namespace motley::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// Keys that hold a path; relative ones are taken from the job file's folder, and those of flags from the current one.
constexpr const char* kPathKeys[] = {
    "model.path",    "data.train",  "data.train_targets",    "data.test", "data.test_targets", "cluster",        "plan",
    "shares.replay", "data.folder", "exchange.server_token", "emulation", "profile",           "data.node_token"};

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
      {{"version", kInteger, "version of the job format", 1, 1}, &Job::version},
      {{"name", kText, "name of the job; run folders are named after it"}, &Job::name},
      {{"seed", kInteger, "seed of the initial weights, the order of the samples and dropout", 0}, &Job::seed},
      {{"model.name",
        kChoice,
        "network",
        -kNone,
        kNone,
        {"mlp", "cnn", "resnet18", "vgg11", "transformer", "ctrdnn", "2emb", "matchnet", "nce", "torchscript",
         "imitation"}},
       &Job::model_name},
      {{"model.path", kText,
        "file of model.name torchscript (made by tools/motley-export), or the profile of model.name imitation"},
       &Job::model_path},
      {{"model.hidden", kIntegers, "widths of the hidden fully connected layers; empty: the network's own", 1},
       &Job::model_hidden},
      {{"model.layers", kInteger, "blocks of transformer; 0: 4", 0}, &Job::model_layers},
      {{"model.width", kInteger, "values that go from block to block of transformer for each token; 0: 128", 0},
       &Job::model_width},
      {{"model.heads", kInteger, "heads of attention in each block of transformer, a divisor of the width; 0: 4", 0},
       &Job::model_heads},
      {{"model.tied", kBoolean, "the weights of transformer's output layer are those of its token embedding"},
       &Job::model_tied},
      {{"model.norm",
        kChoice,
        "normalisation of resnet18 and vgg11; auto: the network's own",
        -kNone,
        kNone,
        {"auto", "none", "batch", "group"}},
       &Job::model_norm},
      {{"model.dropout", kReal, "share of activations dropped in mlp, vgg11 and transformer", 0, 0.95},
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
      {{"data.test", kText, "test features, table or text; empty: no evaluation, or with text by data.test_share"},
       &Job::data_test},
      {{"data.test_targets", kText, "test targets (idx, npy)"}, &Job::data_test_targets},
      {{"data.target", kText, "column of the target (csv)"}, &Job::data_target},
      {{"data.target_kind", kChoice, "what the target is", -kNone, kNone, {"class", "real"}}, &Job::data_target_kind},
      {{"data.leave_out", kText, "columns that are neither feature nor target (csv), separated by commas"},
       &Job::data_leave_out},
      {{"data.categories", kText,
        "columns whose values are categories, which ctrdnn, 2emb, matchnet and nce look up (csv), separated by commas"},
       &Job::data_categories},
      {{"data.malformed_share", kReal, "share of the lines that may be malformed and are skipped (csv, criteo)", 0, 1},
       &Job::data_malformed_share},
      {{"data.samples", kReal, "training samples that are made; a tenth as many for the test (clicks)", 1, 4e9},
       &Job::data_samples},
      {{"data.values", kReal, "different values of all categories together (clicks)", 260, 1ULL << 32},
       &Job::data_values},
      {{"data.zipf", kReal, "exponent by which often seen values outweigh rare ones (clicks)", 0.1, 10},
       &Job::data_zipf},
      {{"data.sequence", kInteger, "bytes of a sample (text)", 1, 1 << 20}, &Job::data_sequence},
      {{"data.test_share", kReal, "share of the text, at its end, that is test data where data.test is empty (text)", 0,
        0.9},
       &Job::data_test_share},
      {{"data.normalise", kBoolean,
        "shift and scale features to mean 0 and deviation 1, as measured on the training data (not text)"},
       &Job::data_normalise},
      {{"data.node", kText,
        "host:port of the data node (`motley data-node`) that has the files; the other keys of the data are as there; "
        "empty: every worker has the files"},
       &Job::data_node},
      {{"data.node_token", kText, "file (mode 0600) with the data node's token; empty: the variable MOTLEY_DATA_TOKEN"},
       &Job::data_node_token},
      {{"data.read_ahead", kInteger, "steps whose samples a worker reads before they are due", 0, 64},
       &Job::data_read_ahead},
      {{"tables.place",
        kChoice,
        "who has the rows that ctrdnn, 2emb, matchnet and nce look up: parameter servers (exchange.servers, or one "
        "that "
        "is started for the job), or every worker, all of them",
        -kNone,
        kNone,
        {"server", "worker"}},
       &Job::tables_place},
      {{"tables.rows", kInteger,
        "rows of the table, into which ids are folded; 0, only with server: as many as there are ids", 0},
       &Job::tables_rows},
      {{"tables.dimension", kInteger, "values of a row; 0: the network's own, 10 or with nce 128", 0, 4096},
       &Job::tables_dimension},
      {{"tables.optimizer",
        kChoice,
        "server: what moves the rows; worker: rows are moved as all weights are",
        -kNone,
        kNone,
        {"adagrad", "adam", "sgd"}},
       &Job::tables_optimizer},
      {{"tables.learning_rate", kReal, "server: learning rate of the rows", 0}, &Job::tables_learning_rate},
      {{"tables.memory", kBytes,
        "server: memory for rows on each server, which keeps the others on disk (motley server --tables); 0: all of "
        "them "
        "in memory",
        0},
       &Job::tables_memory_bytes},
      {{"tables.wire",
        kChoice,
        "server: type of rows and of their gradients on the wire; what it rounds away is lost",
        -kNone,
        kNone,
        {"float32", "bfloat16", "float16", "int8"}},
       &Job::tables_wire},
      {{"tables.prefetch", kBoolean, "server: ask for the next batch's rows while this one is computed"},
       &Job::tables_prefetch},
      {{"tables.cache_rows", kInteger, "server: hot rows that each worker keeps, to use them in several steps; 0: none",
        0, 1 << 30},
       &Job::tables_cache_rows},
      {{"tables.cache_steps", kInteger,
        "server: how many steps older than a step's own a row may be that tables.cache_rows keeps for it", 0, 1 << 20},
       &Job::tables_cache_steps},
      {{"batch", kInteger, "global batch: samples of one step, over all workers", 1, 1 << 30}, &Job::batch},
      {{"accumulation", kInteger, "micro-batches into which a worker cuts its share of a step", 1, 4096},
       &Job::accumulation},
      {{"epochs", kReal, "passes over the training data", 0, 1e6}, &Job::epochs},
      {{"steps", kInteger, "stop after this many steps; 0: by epochs", 0}, &Job::steps},
      {{"loss", kChoice, "loss, averaged over the samples of a step", -kNone, kNone, {"cross-entropy", "bce", "mse"}},
       &Job::loss},
      {{"optimizer.name", kChoice, "optimizer", -kNone, kNone, {"sgd", "adam", "adamw"}}, &Job::optimizer_name},
      {{"optimizer.learning_rate", kReal, "learning rate at the schedule's full height", 0}, &Job::learning_rate},
      {{"optimizer.momentum", kReal, "momentum of sgd", 0, 0.99999}, &Job::momentum},
      {{"optimizer.nesterov", kBoolean, "Nesterov's form of the momentum"}, &Job::nesterov},
      {{"optimizer.weight_decay", kReal, "weight decay", 0}, &Job::weight_decay},
      {{"optimizer.betas", kReals, "decay rates of adam and adamw", 0, 0.9999999}, &Job::betas},
      {{"optimizer.epsilon", kReal, "added to adam's denominator", 0}, &Job::epsilon},
      {{"schedule.name", kChoice, "learning rate over the steps", -kNone, kNone, {"constant", "step", "cosine"}},
       &Job::schedule_name},
      {{"schedule.warmup_steps", kInteger, "steps of linear warm-up", 0}, &Job::schedule_warmup_steps},
      {{"schedule.every_steps", kInteger, "step: multiply by schedule.factor every so many steps", 1},
       &Job::schedule_every_steps},
      {{"schedule.factor", kReal, "step: the factor", 0, 1}, &Job::schedule_factor},
      {{"schedule.final_fraction", kReal, "cosine: share of the learning rate at the last step", 0, 1},
       &Job::schedule_final_fraction},
      {{"clip_norm", kReal, "clip the gradient's global norm to this; 0: no clipping", 0}, &Job::clip_norm},
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
        "with a plan file: profile that the plan was made from, so that the run can adapt and its page show the "
        "predicted step; empty: that of emulation"},
       &Job::profile},
      {{"adapt", kBoolean,
        "a planned run whose profile is known moves to a better plan of the same workers when they are not as fast as "
        "that says"},
       &Job::adapt},
      {{"emulation", kText,
        "with a plan file: profile whose times for its device types and layers the workers take, to try a plan for "
        "devices that are not here; empty: they are as fast as they are"},
       &Job::emulation},
      {{"device", kText, "cpu, cuda or cuda:N, where the cluster file does not say"}, &Job::device},
      {{"threads", kInteger, "compute threads of a worker, where the cluster file does not say", 1, 1024},
       &Job::threads},
      {{"deterministic", kBoolean, "only kernels that give the same bits from run to run"}, &Job::deterministic},
      {{"exchange.method",
        kChoice,
        "how gradients meet: ring (in shared memory where that is possible), or ps, a parameter server; auto: ring, or "
        "what is measured to be faster where exchange.servers are given",
        -kNone,
        kNone,
        {"auto", "ring", "ps", "shared-memory", "tcp-ring"}},
       &Job::exchange_method},
      {{"exchange.wire",
        kChoice,
        "type on the wire between hosts; ps only: int8, top-k (what a gradient leaves out goes with the next one), or "
        "auto: what of float32, bfloat16 and int8 pays",
        -kNone,
        kNone,
        {"float32", "bfloat16", "float16", "int8", "top-k", "auto"}},
       &Job::exchange_wire},
      {{"exchange.top_k", kReal, "top-k: the share of a gradient's values that is sent", 1e-6, 0.5},
       &Job::exchange_top_k},
      {{"exchange.bucket_bytes", kBytes, "gradients are exchanged in buckets of about this size", 4096},
       &Job::exchange_bucket_bytes},
      {{"exchange.consistency",
        kChoice,
        "ps: whether workers take each step together (bsp), may be exchange.staleness steps ahead of the slowest "
        "(ssp), "
        "or any number of steps (async)",
        -kNone,
        kNone,
        {"bsp", "ssp", "async"}},
       &Job::exchange_consistency},
      {{"exchange.staleness", kInteger,
        "ssp: steps that a worker may be ahead of the slowest, 0 is bsp; async: likewise, but 0 sets no bound", 0,
        1 << 20},
       &Job::exchange_staleness},
      {{"exchange.servers", kText,
        "ps, auto: servers to use, 'host:port, host:port'; empty: with ps one is started on this machine for the job"},
       &Job::exchange_servers},
      {{"exchange.server_token", kText,
        "ps, auto: file (mode 0600) with the servers' token; empty: the variable MOTLEY_SERVER_TOKEN"},
       &Job::exchange_server_token},
      {{"exchange.tenant", kText, "ps: whom the servers' token belongs to, where they tell tenants apart"},
       &Job::exchange_tenant},
      {{"exchange.placement",
        kChoice,
        "ps: where gradients are summed: central at the first server, sharded over all, colocated beside the workers, "
        "hierarchical by rack first; auto: sharded, or with exchange.racks what measured links make faster",
        -kNone,
        kNone,
        {"auto", "central", "sharded", "colocated", "hierarchical"}},
       &Job::exchange_placement},
      {{"exchange.racks", kIntegers, "ps: for each worker which of exchange.servers, from 0, is in its rack", 0},
       &Job::exchange_racks},
      {{"exchange.server_cores", kInteger,
        "ps: threads of the server that is started for the job; 0: one a core, colocated: one", 0, 1024},
       &Job::exchange_server_cores},
      {{"exchange.chunk_bytes", kBytes, "ps: gradients are summed in chunks of this size", 64, 1 << 20},
       &Job::exchange_chunk_bytes},
      {{"exchange.overlap", kBoolean,
        "exchange finished buckets while backward still runs; copy to and from GPUs while they compute"},
       &Job::exchange_overlap},
      {{"shares.mode",
        kChoice,
        "how a step's samples are shared: dynamic follows measured speed (and pulls from a queue under random delays)",
        -kNone,
        kNone,
        {"dynamic", "equal", "fixed", "replay", "pull"}},
       &Job::shares},
      {{"shares.fixed", kIntegers, "fixed: samples of each worker in a full batch", 0}, &Job::shares_fixed},
      {{"shares.replay", kText, "replay: run folder whose recorded shares are used again"}, &Job::shares_replay},
      {{"control.every", kInteger,
        "run control steps with the equal split every so many steps, to measure the gain in the same run; 0: never", 0},
       &Job::control_every},
      {{"control.steps", kInteger, "control steps in a row", 1, 1000}, &Job::control_steps},
      {{"checkpoint.every_steps", kInteger, "checkpoint every so many steps; 0: by time only", 0},
       &Job::checkpoint_every_steps},
      {{"checkpoint.every", kSeconds, "checkpoint at least this often; 0: by steps only", 0},
       &Job::checkpoint_every_seconds},
      {{"checkpoint.keep", kInteger, "checkpoints kept; 0: none is written, not even at the end", 0, 1000},
       &Job::checkpoint_keep},
      {{"evaluate.every_epochs", kReal,
        "evaluate on the test data this often and at the end; 0: at the end only; -1: never", -1},
       &Job::evaluate_every_epochs},
      {{"goal.test_accuracy", kReal, "the summary says whether the test accuracy reached this; 0: no goal", 0, 1},
       &Job::goal_test_accuracy},
      {{"goal.test_auc", kReal, "the same for the area under the ROC curve on the test data, of two classes", 0, 1},
       &Job::goal_test_auc},
      {{"goal.speedup_over_equal", kReal, "the same for the speed-up over the equal split, which control steps measure",
        0},
       &Job::goal_speedup_over_equal},
      {{"goal.worst_wait_share", kReal, "the same for the share of a step that the worst worker waits", 0, 1},
       &Job::goal_worst_wait_share},
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
      return fail(set.error().within("flag --" + key));
    }
    resolve_path(job, key, std::filesystem::current_path());
  }
  return {};
}

Status check_job(const Job& job) {
  const auto refuse = [](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  if (job.nesterov && (job.momentum == 0 || job.optimizer_name != "sgd")) {
    return refuse("optimizer.nesterov: true needs optimizer.name sgd and optimizer.momentum above 0");
  }
  if (job.exchange_consistency != "bsp") {
    const std::string given = "exchange.consistency: " + job.exchange_consistency;
    if (job.exchange_method != "ps") {
      return refuse(fmt::format("{} needs exchange.method ps; accepted with exchange.method {}: bsp", given,
                                job.exchange_method));
    }
    if (job.clip_norm > 0) {
      return refuse(
          fmt::format("clip_norm: {} needs the gradient of all workers; accepted with {}: 0, as each "
                      "worker's gradient moves the weights by itself",
                      job.clip_norm, given));
    }
    if (job.shares == "pull") {
      return refuse(
          fmt::format("shares.mode: pull needs all workers at the same step; accepted with {}: dynamic, "
                      "equal, fixed or replay",
                      given));
    }
  } else if (job.exchange_staleness > 0) {
    return refuse(
        fmt::format("exchange.staleness: {} is given, but exchange.consistency is bsp; accepted: 0, or "
                    "exchange.consistency ssp or async",
                    job.exchange_staleness));
  }
  if (job.betas.size() != 2) {
    return refuse(
        fmt::format("optimizer.betas: {} numbers are given; accepted: two, such as [0.9, 0.999]", job.betas.size()));
  }
  if (job.model_name == "torchscript" && job.model_path.empty()) {
    return refuse("model.path: model.name torchscript needs the file; tools/motley-export writes one");
  }
  if (imitates(job)) {
    const auto needs = [&](const std::string& text) { return refuse(text + " with model.name imitation"); };
    if (job.model_path.empty()) return needs("model.path: empty; accepted: the profile to imitate,");
    if (job.plan.empty()) return needs("plan: none; accepted: a plan file or auto");
    if (job.model_dtype != "float32") {
      return needs(fmt::format("model.dtype: {}; accepted: float32", job.model_dtype));
    }
  }
  if (job.shares == "replay" && job.shares_replay.empty()) {
    return refuse("shares.replay: shares.mode replay needs the run folder whose shares are used again");
  }
  for (const auto& [key, file] : {std::pair{"emulation", &job.emulation}, std::pair{"profile", &job.profile}}) {
    if (!file->empty() && (job.plan.empty() || job.plan == kAutoPlan)) {
      return refuse(fmt::format("{}: '{}' is given; accepted with a plan file (key plan)", key, *file));
    }
  }
  if (job.shares == "fixed" && job.shares_fixed.empty() && job.plan.empty()) {
    return refuse("shares.fixed: shares.mode fixed needs the samples of each worker, such as [64, 128]");
  }
  if (job.epochs == 0 && job.steps == 0) {
    return refuse("epochs and steps are both 0; give one of them");
  }
  if (job.device != "cpu" && job.device != "cuda" && job.device.rfind("cuda:", 0) != 0) {
    return refuse(fmt::format("device: '{}' is not accepted; accepted: cpu, cuda or cuda:N", job.device));
  }
  const bool served_only = job.exchange_wire == "int8" || job.exchange_wire == "top-k" || job.exchange_wire == "auto";
  if (job.exchange_method != "ps" && served_only) {
    return refuse(fmt::format("exchange.wire: {} needs exchange.method ps; accepted with {}: float32 and bfloat16",
                              job.exchange_wire, job.exchange_method));
  }
  if (job.exchange_consistency != "bsp" && served_only) {
    return refuse(
        fmt::format("exchange.wire: {} needs all workers at the same step; accepted with exchange.consistency {}: "
                    "float32, bfloat16 and float16",
                    job.exchange_wire, job.exchange_consistency));
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
  const bool looks_up = nn::is_click_network(job.model_name);
  const bool has_categories = job.data_name == "criteo" || job.data_name == "clicks" || !job.data_categories.empty();
  if (looks_up != has_categories && job.model_name != "torchscript") {
    return refuse(looks_up
                      ? fmt::format("data.name: {} has no categories for {} to look up; accepted: csv with "
                                    "data.categories, criteo, clicks",
                                    job.data_name, job.model_name)
                      : fmt::format("model.name: {} looks no categories up; accepted with this data: ctrdnn, 2emb, "
                                    "matchnet, nce",
                                    job.model_name));
  }
  if (!job.data_categories.empty() && job.data_name != "csv") {
    return refuse(fmt::format("data.categories: accepted with data.name csv, not {}", job.data_name));
  }
  if (has_served_table(job)) {
    const auto needs = [&](const std::string& key, const std::string& given, const std::string& accepted) {
      return refuse(fmt::format("{}: {}; accepted with tables.place server: {}", key, given, accepted));
    };
    if (job.exchange_consistency != "bsp") return needs("exchange.consistency", job.exchange_consistency, "bsp");
    if (job.clip_norm > 0) return needs("clip_norm", fmt::format("{}", job.clip_norm), "0, as servers move the rows");
    if (job.exchange_placement == "colocated" || !job.exchange_racks.empty()) {
      return needs("exchange.placement", job.exchange_placement, "servers that are not beside workers, without racks");
    }
    if (job.tables_cache_steps > 0 && job.tables_cache_rows == 0) {
      return refuse(
          fmt::format("tables.cache_steps: {} is given, but tables.cache_rows is 0; accepted: 0, or "
                      "tables.cache_rows that workers keep so long",
                      job.tables_cache_steps));
    }
    if (job.tables_cache_rows > 0 && job.tables_cache_steps == 0) {
      return refuse(
          fmt::format("tables.cache_rows: {} is given, but tables.cache_steps is 0, so that no step would use them "
                      "again; accepted: 0, or tables.cache_steps of 1 or more",
                      job.tables_cache_rows));
    }
  } else if (looks_up) {
    const auto needs = [&](const std::string& key, const std::string& accepted) {
      return refuse(
          fmt::format("{}: accepted with tables.place worker: {}, as a worker has all rows in memory", key, accepted));
    };
    if (job.tables_memory_bytes > 0) return needs("tables.memory", "0");
    if (job.tables_wire != "float32") return needs("tables.wire", "float32");
    if (job.tables_cache_rows > 0 || job.tables_cache_steps > 0) return needs("tables.cache_rows", "0");
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

bool imitates(const Job& job) {
  return job.model_name == nn::kImitation;
}

bool has_served_table(const Job& job) {
  return nn::is_click_network(job.model_name) && job.tables_place == "server";
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
