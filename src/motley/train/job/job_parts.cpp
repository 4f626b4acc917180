#include "motley/train/job/job_parts.h"

#include <cstdlib>
#include <sstream>

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "motley/base/os/file.h"
#include "motley/nn/click_networks.h"
#include "motley/train/job/job_data.h"
#include "motley/train/launch/server_placement.h"
#include "motley/train/loop/served_weights.h"

namespace motley::train {

collective::WireType wire_type_of(const std::string& name) {
  return name == "bfloat16"  ? collective::WireType::kBfloat16
         : name == "float16" ? collective::WireType::kFloat16
         : name == "int8"    ? collective::WireType::kInt8
         : name == "top-k"   ? collective::WireType::kTopK
         : name == "auto"    ? collective::WireType::kAuto
                             : collective::WireType::kNative;
}

JobParts make_parts(const Job& job) {
  JobParts parts;
  parts.optimizer.name = job.optimizer_name;
  parts.optimizer.learning_rate = job.learning_rate;
  parts.optimizer.momentum = job.optimizer_name == "sgd" ? job.momentum : 0;
  parts.optimizer.nesterov = job.nesterov;
  parts.optimizer.weight_decay = job.weight_decay;
  parts.optimizer.beta1 = job.betas[0];
  parts.optimizer.beta2 = job.betas[1];
  parts.optimizer.epsilon = job.epsilon;
  const std::string& method = job.exchange_method;
  parts.exchange.method = method == "ps"              ? collective::Method::kParameterServer
                          : method == "shared-memory" ? collective::Method::kSharedMemory
                          : method == "tcp-ring"      ? collective::Method::kTcpRing
                                                      : collective::Method::kAuto;
  parts.exchange.wire = wire_type_of(job.exchange_wire);
  parts.exchange.top_k = job.exchange_top_k;
  parts.exchange.chunk_bytes = static_cast<std::size_t>(job.exchange_chunk_bytes);
  // Clipping needs the whole gradient before any weight moves: the workers do it, and the servers only add up.
  if (job.clip_norm == 0) {
    parts.exchange.update = update_options(parts.optimizer);
  }
  const auto staleness = static_cast<std::uint32_t>(job.exchange_staleness);
  if (job.exchange_consistency == "async") {
    parts.exchange.staleness = staleness > 0 ? staleness : collective::kAnyStaleness;
  } else if (job.exchange_consistency == "ssp" && staleness > 0) {
    parts.exchange.staleness = staleness;
  }
  parts.exchange.background_progress = job.exchange_overlap;
  return parts;
}

Result<std::vector<collective::ServerAddress>> servers_of(const Job& job) {
  const char* given = std::getenv(kServersVariable);
  std::string list = job.exchange_servers.empty() && given != nullptr ? given : job.exchange_servers;
  if (list.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "exchange.servers: empty; accepted: 'host:port' of each `motley server` (only `motley train` without a "
                "launcher starts one itself)");
  }
  std::vector<net::Endpoint> endpoints;
  std::ranges::replace(list, ',', ' ');
  std::istringstream words(list);
  for (std::string word; words >> word;) {
    auto endpoint = net::parse_endpoint(word);
    if (!endpoint) {
      return fail(endpoint.error().within("exchange.servers"));
    }
    endpoints.push_back(*endpoint);
  }
  const auto token = job.exchange_server_token.empty() ? net::Secret::from_environment(kServerTokenVariable)
                                                       : net::Secret::from_file(job.exchange_server_token);
  if (!token) {
    return fail(token.error().within("exchange.server_token"));
  }
  std::vector<collective::ServerAddress> servers;
  for (const net::Endpoint& endpoint : endpoints) {
    servers.push_back({endpoint, *token});
  }
  return servers;
}

nn::ScheduleSpec schedule_of(const Job& job, std::int64_t steps) {
  nn::ScheduleSpec schedule;
  schedule.name = job.schedule_name;
  schedule.warmup_steps = job.schedule_warmup_steps;
  schedule.step_size = job.schedule_every_steps;
  schedule.factor = job.schedule_factor;
  schedule.total_steps = steps;
  schedule.minimum = job.schedule_final_fraction;
  return schedule;
}

Result<nn::NetworkSpec> network_of(const Job& job, const data::Dataset& training) {
  nn::NetworkSpec network;
  network.name = job.model_name;
  network.path = job.model_path;
  network.norm = job.model_norm == "auto" ? "" : job.model_norm;
  network.layers = job.model_layers;
  network.width = job.model_width;
  network.heads = job.model_heads;
  network.tied = job.model_tied;
  network.dropout = job.model_dropout;
  network.dtype = job.model_dtype;
  if (nn::is_click_network(job.model_name)) {
    network.categories = training.categories();
    network.dimension = job.tables_dimension;
    network.rows = job.tables_rows;
    network.served_rows = job.tables_place == "server";
  }
  if (!job.model_hidden.empty()) {
    network.hidden = job.model_hidden;
  }
  network.input_shape = job.model_input_shape.empty() ? training.feature_shape() : job.model_input_shape;
  if (network.input_shape != training.feature_shape()) {
    return fail(ErrorCode::kInvalidInput, "model.input_shape: [{}] is given, a sample of the data has shape [{}]",
                fmt::join(network.input_shape, ", "), fmt::join(training.feature_shape(), ", "));
  }
  const bool classes = training.target_kind() == data::TargetKind::kClass;
  if (classes != (job.loss == "cross-entropy")) {
    if (!(classes && job.loss == "bce" && training.class_count() == 2)) {
      return fail(ErrorCode::kInvalidInput, "loss: '{}' does not suit the data's targets, which are {}; accepted: {}",
                  job.loss, classes ? "classes" : "real values",
                  classes ? "cross-entropy, or bce for two classes" : "mse or bce");
    }
  }
  const std::int64_t natural = classes ? (job.loss == "bce" ? 1 : training.class_count()) : training.target_width();
  network.outputs = job.model_outputs == 0 ? natural : job.model_outputs;
  if (network.outputs < natural) {
    return fail(ErrorCode::kInvalidInput, "model.outputs: {} is too few; the data needs {}", network.outputs, natural);
  }
  return network;
}

Result<data::PartitionOptions> partition_of(const Job& job, const cluster::Cluster& cluster, bool has_batch_norm) {
  data::PartitionOptions options;
  MOTLEY_ASSIGN(options.policy, data::parse_share_policy(job.shares));
  options.batch = static_cast<std::uint32_t>(job.batch);
  for (const cluster::Worker& worker : cluster.workers) {
    data::WorkerLimits limits;
    limits.minimum = static_cast<std::uint32_t>(std::max<std::int64_t>(worker.min_samples, has_batch_norm ? 2 : 1));
    if (worker.max_samples) {
      limits.maximum = static_cast<std::uint32_t>(std::min<std::int64_t>(*worker.max_samples, limits.maximum));
    }
    options.limits.push_back(limits);
  }
  // A shard may be a single sample; and shards are claimed by workers at the same step.
  options.may_pull = !has_batch_norm && job.exchange_consistency == "bsp";
  if (options.policy == data::SharePolicy::kFixed && job.plan.empty()) {
    if (job.shares_fixed.size() != cluster.workers.size()) {
      return fail(ErrorCode::kInvalidInput, "shares.fixed: {} numbers are given for {} workers",
                  job.shares_fixed.size(), cluster.workers.size());
    }
    options.proportions.assign(job.shares_fixed.begin(), job.shares_fixed.end());
  }
  if (options.policy == data::SharePolicy::kReplay) {
    const std::filesystem::path file = std::filesystem::path(job.shares_replay) / "metrics.jsonl";
    MOTLEY_ASSIGN(const std::string text, read_file(file));
    MOTLEY_ASSIGN(options.recorded, data::read_shares(text, file.string()));
  }
  return options;
}

Status check_inputs(const Job& job, const cluster::Cluster& cluster) {
  if ((job.exchange_method == "ps" || job.exchange_method == "auto") && !job.exchange_servers.empty()) {
    MOTLEY_TRY(servers_of(job));
  }
  if (job.exchange_method == "ps") {
    if (job.model_dtype == "float64") {
      return fail(ErrorCode::kInvalidInput,
                  "model.dtype: float64; accepted with exchange.method ps: float32, in which servers keep weights");
    }
    MOTLEY_TRY(check_placement(job, static_cast<int>(cluster.workers.size())));
  }
  if (!job.model_path.empty() && !std::ifstream(job.model_path)) {
    return fail(ErrorCode::kInvalidInput, "model.path: cannot read '{}': {}", job.model_path, errno_text());
  }
  MOTLEY_TRY(check_data(job));
  MOTLEY_ASSIGN(data::PartitionOptions partition, partition_of(job, cluster, false));
  if (job.plan.empty()) {
    MOTLEY_TRY(data::Partition::create(std::move(partition)));
  }
  return {};
}

std::string device_of(const Job& job, const cluster::Cluster& cluster, int rank, int local_rank) {
  const cluster::Worker& worker = cluster.workers[static_cast<std::size_t>(rank)];
  const cluster::DeviceType* type = cluster.device_type(worker.device);
  const bool from_file = !job.cluster.empty() && type != nullptr && !imitates(job);
  const std::string device = from_file ? cluster::to_string(type->kind) : job.device;
  if (device != "cuda") {
    return device;
  }
  const auto devices = static_cast<int>(torch::cuda::device_count());
  return fmt::format("cuda:{}", devices > 0 ? local_rank % devices : 0);
}

bool is_control_step(const Job& job, std::int64_t step) {
  if (job.control_every == 0 || job.shares == "replay") {
    return false;
  }
  return step > job.control_every && (step - 1) % job.control_every < job.control_steps;
}

data::Shares equal_shares(std::uint32_t window, std::span<const data::WorkerLimits> limits) {
  const auto size = static_cast<std::uint32_t>(limits.size());
  data::Shares shares(size);
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
