#include "motley/train/worker/job_parts.h"

#include "motley/model/model_names.h"
#include "motley/train/job/servers.h"

namespace motley::train {

JobParts make_parts(const Job& job) {
  const OptimizerSpec& keys = job.optimizer;
  return {.optimizer = {.name = keys.name,
                        .learning_rate = keys.learning_rate,
                        .momentum = keys.name == "sgd" ? keys.momentum : 0,
                        .nesterov = keys.nesterov,
                        .weight_decay = keys.weight_decay,
                        .beta1 = keys.betas[0],
                        .beta2 = keys.betas[1],
                        .epsilon = keys.epsilon},
          .gradient_sync = make_server_options(job)};
}

nn::ScheduleSpec make_lr_schedule(const Job& job, std::int64_t steps) {
  const LrSchedulerSpec& keys = job.lr_scheduler;
  return {.name = keys.name,
          .warmup_steps = keys.warmup_steps,
          .step_size = keys.step_size,
          .factor = keys.gamma,
          .total_steps = steps,
          .minimum = keys.min_lr_ratio};
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
  if (model::is_ctr_model(job.model.name)) {
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
