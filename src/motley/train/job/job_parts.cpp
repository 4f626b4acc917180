#include "motley/train/job/job_parts.h"

#include <cstdlib>
#include <sstream>

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "motley/base/os/file.h"
#include "motley/nn/ctr_models.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/train/job/job_data.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/step/served_weights.h"

namespace motley::train {

collective::WireType parse_wire_type(const std::string& name) {
  return name == "bfloat16"  ? collective::WireType::kBfloat16
         : name == "float16" ? collective::WireType::kFloat16
         : name == "int8"    ? collective::WireType::kInt8
         : name == "top-k"   ? collective::WireType::kTopK
         : name == "auto"    ? collective::WireType::kAuto
                             : collective::WireType::kNative;
}

JobParts make_parts(const Job& job) {
  JobParts parts;
  parts.optimizer.name = job.optimizer.name;
  parts.optimizer.learning_rate = job.optimizer.learning_rate;
  parts.optimizer.momentum = job.optimizer.name == "sgd" ? job.optimizer.momentum : 0;
  parts.optimizer.nesterov = job.optimizer.nesterov;
  parts.optimizer.weight_decay = job.optimizer.weight_decay;
  parts.optimizer.beta1 = job.optimizer.betas[0];
  parts.optimizer.beta2 = job.optimizer.betas[1];
  parts.optimizer.epsilon = job.optimizer.epsilon;
  const std::string& method = job.gradient_sync.method;
  parts.gradient_sync.method = method == "parameter-server" ? collective::Method::kParameterServer
                               : method == "shared-memory"  ? collective::Method::kSharedMemory
                               : method == "tcp-ring"       ? collective::Method::kTcpRing
                                                            : collective::Method::kAuto;
  parts.gradient_sync.wire = parse_wire_type(job.gradient_sync.comm_dtype);
  parts.gradient_sync.top_k = job.gradient_sync.top_k;
  parts.gradient_sync.chunk_bytes = static_cast<std::size_t>(job.gradient_sync.chunk_size);
  // Clipping needs the whole gradient before any weight moves: the workers do it, and the servers only add up.
  if (job.max_grad_norm == 0) {
    parts.gradient_sync.update = update_options(parts.optimizer);
  }
  const auto staleness = static_cast<std::uint32_t>(job.gradient_sync.staleness);
  if (job.gradient_sync.consistency == "async") {
    parts.gradient_sync.staleness = staleness > 0 ? staleness : ps::kAnyStaleness;
  } else if (job.gradient_sync.consistency == "ssp" && staleness > 0) {
    parts.gradient_sync.staleness = staleness;
  }
  parts.gradient_sync.background_progress = job.gradient_sync.overlap;
  return parts;
}

Result<std::vector<ps::ServerAddress>> read_servers(const Job& job) {
  const char* given = std::getenv(kServersVariable);
  std::string list = job.gradient_sync.servers.empty() && given != nullptr ? given : job.gradient_sync.servers;
  if (list.empty()) {
    return fail(
        ErrorCode::kInvalidInput,
        "gradient_sync.servers: empty; accepted: 'host:port' of each `motley server` (only `motley train` without a "
        "launcher starts one itself)");
  }
  std::vector<net::Endpoint> endpoints;
  std::ranges::replace(list, ',', ' ');
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    auto endpoint = net::parse_endpoint(word);
    if (!endpoint) {
      return fail(endpoint.error().within("gradient_sync.servers"));
    }
    endpoints.push_back(*endpoint);
  }
  const auto token = net::Secret::from_file(job.gradient_sync.token_file, net::kTokenFileVariable);
  if (!token) {
    return fail(token.error().within("gradient_sync.token_file"));
  }
  std::vector<ps::ServerAddress> servers;
  for (const net::Endpoint& endpoint : endpoints) {
    servers.push_back({endpoint, *token});
  }
  return servers;
}

void name_token_files(Job& job) {
  const char* named = std::getenv(net::kTokenFileVariable);
  if (named == nullptr) return;
  const std::string file = std::filesystem::absolute(named).string();
  if (!job.data.server.empty() && job.data.token_file.empty()) job.data.token_file = file;
  if (!job.gradient_sync.servers.empty() && job.gradient_sync.token_file.empty()) job.gradient_sync.token_file = file;
}

nn::ScheduleSpec make_lr_schedule(const Job& job, std::int64_t steps) {
  nn::ScheduleSpec schedule;
  schedule.name = job.lr_scheduler.name;
  schedule.warmup_steps = job.lr_scheduler.warmup_steps;
  schedule.step_size = job.lr_scheduler.step_size;
  schedule.factor = job.lr_scheduler.gamma;
  schedule.total_steps = steps;
  schedule.minimum = job.lr_scheduler.min_lr_ratio;
  return schedule;
}

Result<nn::NetworkSpec> make_network_spec(const Job& job, const data::Dataset& training) {
  nn::NetworkSpec network;
  network.name = job.model.name;
  network.path = job.model.path;
  network.norm = job.model.norm == "auto" ? "" : job.model.norm;
  network.layers = job.model.num_layers;
  network.width = job.model.hidden_size;
  network.heads = job.model.num_heads;
  network.tied = job.model.tie_embeddings;
  network.dropout = job.model.dropout;
  network.dtype = job.model.dtype;
  if (nn::is_ctr_model(job.model.name)) {
    network.categories = training.categories();
    network.dimension = job.embedding.embedding_dim;
    network.rows = job.embedding.num_embeddings;
    network.served_rows = job.embedding.placement == "server";
  }
  if (!job.model.hidden_sizes.empty()) {
    network.hidden = job.model.hidden_sizes;
  }
  network.input_shape = job.model.input_shape.empty() ? training.feature_shape() : job.model.input_shape;
  if (network.input_shape != training.feature_shape()) {
    return fail(ErrorCode::kInvalidInput, "model.input_shape: [{}] is given, a sample of the data has shape [{}]",
                fmt::join(network.input_shape, ", "), fmt::join(training.feature_shape(), ", "));
  }
  const bool classes = training.target_kind() == data::TargetKind::kClass;
  if (classes != (job.training.loss == "cross-entropy")) {
    if (!(classes && job.training.loss == "bce" && training.class_count() == 2)) {
      return fail(ErrorCode::kInvalidInput, "loss: '{}' does not suit the data's targets, which are {}; accepted: {}",
                  job.training.loss, classes ? "classes" : "real values",
                  classes ? "cross-entropy, or bce for two classes" : "mse or bce");
    }
  }
  const std::int64_t natural =
      classes ? (job.training.loss == "bce" ? 1 : training.class_count()) : training.target_width();
  network.outputs = job.model.outputs == 0 ? natural : job.model.outputs;
  if (network.outputs < natural) {
    return fail(ErrorCode::kInvalidInput, "model.outputs: {} is too few; the data needs {}", network.outputs, natural);
  }
  return network;
}

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

Status check_inputs(const Job& job, const cluster::Cluster& cluster) {
  if ((job.gradient_sync.method == "parameter-server" || job.gradient_sync.method == "auto") &&
      !job.gradient_sync.servers.empty()) {
    MOTLEY_TRY(read_servers(job));
  }
  if (job.gradient_sync.method == "parameter-server") {
    if (job.model.dtype == "float64") {
      return fail(ErrorCode::kInvalidInput,
                  "model.dtype: float64; accepted with gradient_sync.method parameter-server: float32, in which "
                  "servers keep weights");
    }
    MOTLEY_TRY(check_placement(job, static_cast<int>(cluster.workers.size())));
  }
  if (!job.model.path.empty() && !std::ifstream(job.model.path)) {
    return fail(ErrorCode::kInvalidInput, "model.path: cannot read '{}': {}", job.model.path, errno_text());
  }
  MOTLEY_TRY(check_data(job));
  MOTLEY_ASSIGN(data::BatchSplitOptions partition, make_split_options(job, cluster, false));
  if (job.execution.plan.empty()) {
    MOTLEY_TRY(data::BatchSplitter::create(std::move(partition)));
  }
  return {};
}

std::string find_device(const Job& job, const cluster::Cluster& cluster, int rank, int local_rank) {
  const cluster::Worker& worker = cluster.workers[static_cast<std::size_t>(rank)];
  const cluster::DeviceType* type = cluster.device_type(worker.device);
  const bool from_file = !job.execution.cluster.empty() && type != nullptr && !is_synthetic(job);
  const std::string device = from_file ? cluster::to_string(type->kind) : job.execution.device;
  if (device != "cuda") {
    return device;
  }
  const auto devices = static_cast<int>(torch::cuda::device_count());
  return fmt::format("cuda:{}", devices > 0 ? local_rank % devices : 0);
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

Status pin_to_cores(const cluster::Worker& worker) {
  if (worker.cores.empty()) {
    return {};
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const std::int64_t core : worker.cores) {
    CPU_SET(static_cast<std::size_t>(core), &set);
  }
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) {
    return fail(ErrorCode::kInvalidInput, "worker '{}' cannot be pinned to cores [{}]: {}", worker.name,
                fmt::join(worker.cores, ", "), errno_text());
  }
  return {};
}

torch::Tensor batch_inputs(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                           torch::Dtype dtype) {
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(batch.samples.size())};
  shape.insert(shape.end(), dataset.feature_shape().begin(), dataset.feature_shape().end());
  return torch::from_blob(const_cast<float*>(batch.features.data()), shape, torch::kFloat32).to(device, dtype);
}

torch::Tensor batch_targets(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                            torch::Dtype dtype) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(batch.samples.size()), dataset.target_width()};
  if (dataset.target_kind() == data::TargetKind::kClass) {
    return torch::from_blob(const_cast<std::int64_t*>(batch.classes.data()), shape, torch::kInt64).to(device);
  }
  return torch::from_blob(const_cast<float*>(batch.values.data()), shape, torch::kFloat32).to(device, dtype);
}

}  // namespace motley::train
