#include "motley/train/worker/job_parts.h"

#include "motley/model/model_names.h"

namespace motley::train {

nn::OptimizerSpec make_optimizer_spec(const Job& job) {
  const OptimizerSpec& keys = job.optimizer;
  return {.name = keys.name,
          .learning_rate = keys.learning_rate,
          .momentum = keys.name == "sgd" ? keys.momentum : 0,
          .nesterov = keys.nesterov,
          .weight_decay = keys.weight_decay,
          .beta1 = keys.betas[0],
          .beta2 = keys.betas[1],
          .epsilon = keys.epsilon};
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

}  // namespace motley::train
