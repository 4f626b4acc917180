#include "motley/train/step/local_network.h"

namespace motley::train {
namespace {

// Features [n, feature_shape...].
torch::Tensor batch_inputs(const data::Batch& batch, const data::Dataset& dataset, torch::Device device,
                           torch::Dtype dtype) {
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(batch.samples.size())};
  shape.insert(shape.end(), dataset.feature_shape().begin(), dataset.feature_shape().end());
  return torch::from_blob(const_cast<float*>(batch.features.data()), shape, torch::kFloat32).to(device, dtype);
}

}  // namespace

Status LocalNetwork::measure(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const {
  nn::Evaluation seen(loss, {metric});
  MOTLEY_TRY(seen.add(outputs, targets));
  report.loss_sum += seen.totals()[0];
  report.loss_count += seen.totals()[1];
  report.metric_sum += seen.totals()[2];
  report.metric_count += seen.totals()[3];
  return {};
}

Result<torch::Tensor> BatchTensors::inputs(std::int64_t step, const data::Batch& batch, const data::Dataset& dataset) {
  if (!network_.lookups) {
    return batch_inputs(batch, dataset, network_.device, network_.dtype);
  }
  torch::Tensor rows;
  if (table_) {
    const double begin = monotonic_seconds();
    context_.set_phase(step, "pulling rows");
    const bool is_training = &dataset == &reader_.dataset();
    MOTLEY_ASSIGN(rows, is_training ? table_->rows(batch.ids, context_.step_deadline())
                                    : table_->exact_rows(batch.ids, context_.step_deadline()));
    context_.timeline.record(Phase::kLoad, step, begin, monotonic_seconds());
  }
  const torch::Tensor features = batch_inputs(batch, dataset, torch::kCPU, torch::kFloat32);
  return nn::lookup_input(*network_.lookups, features, batch.ids, rows).to(network_.device, network_.dtype);
}

torch::Tensor BatchTensors::targets(const data::Batch& batch, const data::Dataset& dataset) const {
  const std::int64_t shape[] = {static_cast<std::int64_t>(batch.samples.size()), dataset.target_width()};
  if (dataset.target_kind() == data::TargetKind::kClass) {
    return torch::from_blob(const_cast<std::int64_t*>(batch.classes.data()), shape, torch::kInt64).to(network_.device);
  }
  return torch::from_blob(const_cast<float*>(batch.values.data()), shape, torch::kFloat32)
      .to(network_.device, network_.dtype);
}

void BatchTensors::begin_step() {
  if (table_) before_ = table_->counts();
}

Status BatchTensors::prefetch(const Deadline& patience) {
  if (table_ && table_->may_read_ahead()) {
    if (const auto next = reader_.next_ids(patience); !next.empty()) {
      return table_->read_ahead(next);
    }
  }
  return {};
}

Status BatchTensors::push(const data::Batch& batch, std::int64_t first, const torch::Tensor& input_gradient,
                          double weight) {
  return table_ ? table_->push(batch.ids, first, input_gradient, weight, context_.step_deadline()) : Status();
}

Status BatchTensors::finish_step(Report& report) {
  if (!table_) {
    return {};
  }
  // Out of a cache rows that are asked for ahead are older: then whether they are must not depend on the clock.
  MOTLEY_TRY(prefetch(table_->caches() ? context_.step_deadline() : Deadline::after(0)));
  MOTLEY_TRY(table_->finish_step(report.samples, context_.step_deadline()));
  const ServedTable::Counts rows = table_->counts();
  report.rows.waited = rows.waited - before_.waited;
  report.waited += report.rows.waited;
  report.rows.pulled_bytes = rows.pulled_bytes - before_.pulled_bytes;
  report.rows.pushed_bytes = rows.pushed_bytes - before_.pushed_bytes;
  report.rows.needed = rows.needed - before_.needed;
  report.rows.cached = rows.cached - before_.cached;
  report.rows.prefetched = rows.ahead - before_.ahead;
  return {};
}

}  // namespace motley::train
