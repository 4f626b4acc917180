// A step's computation: loading the rank's samples, forward and backward of the whole network or of its stage, and
// starting the exchange of each bucket of gradients.
#include "motley/train/loop/worker_state.h"

#include <algorithm>

#include "motley/base/log.h"
#include "motley/nn/runtime.h"

namespace motley::train {

Result<data::Batch> Worker::load(std::span<const std::uint32_t> samples, Report& report) {
  const double begin = monotonic_seconds();
  session_->set_phase(static_cast<std::uint64_t>(step_), "loading");
  if (!read_ahead_.empty() && std::ranges::equal(samples, read_ahead_.front())) {
    read_ahead_.pop_front();
  } else {
    loader_->discard();
    read_ahead_.clear();
    loader_->request(samples, own_parts());
  }
  MOTLEY_ASSIGN(data::Batch batch, loader_->take(step_deadline()));
  if (!layout_ || layout_->is_first(role_.rank)) {  // the last stage reads their targets, and counts them not again
    counts_->record(batch.samples);
  }
  const double end = monotonic_seconds();
  if (job_.data.server.empty()) {
    report.load += end - begin;
  } else {
    report.waited += end - begin;
    report.fetched += end - begin;
  }
  timeline_->record(Phase::kLoad, step_, begin, end);
  return batch;
}

// What this rank needs of its samples: a planned job's first stage their inputs, and its last one their targets.
data::Parts Worker::own_parts() const {
  return layout_ ? data::Parts{layout_->is_first(role_.rank), layout_->is_last(role_.rank)} : data::Parts();
}

// The samples of a window that are this rank's, in the order in which it computes them.
std::vector<std::uint32_t> Worker::own_samples(data::Range window, const data::StepPlan& plan) const {
  std::vector<std::uint32_t> own;
  const auto append = [&](data::Range positions) {
    const auto samples = ledger_->samples(positions);
    own.insert(own.end(), samples.begin(), samples.end());
  };
  if (pipeline_) {
    for (const data::Range& rows : pipeline_->own_rows(window)) append(rows);
  } else {
    append(data::rank_range(window, plan.shares, role_.rank));
  }
  return own;
}

// Reads what this rank will need if the shares stay as they are; load() checks.
void Worker::read_ahead(data::Range window, const data::StepPlan& plan) {
  while (!plan.pulls() && read_ahead_.size() < static_cast<std::size_t>(job_.data.prefetch)) {
    const auto begin = window.end + static_cast<std::uint32_t>(read_ahead_.size()) * window.size();
    const data::Range next{begin, std::min(begin + window.size(), train_data_->size())};
    if (next.begin >= next.end || next.size() != window.size()) {
      return;
    }
    std::vector<std::uint32_t> samples = own_samples(next, plan);
    if (samples.empty() || !loader_->request(samples, own_parts())) {
      return;
    }
    read_ahead_.push_back(std::move(samples));
  }
}

Status Worker::compute_share(const data::StepPlan& plan, data::Range window, Report& report) {
  const std::vector<std::uint32_t> samples = own_samples(window, plan);
  weight_ = static_cast<double>(samples.size());
  if (samples.empty()) {
    return start_reduce(0);
  }
  MOTLEY_ASSIGN(data::Batch batch, load(samples, report));
  read_ahead(window, plan);
  MOTLEY_TRY(compute_batch(batch, weight_, true, report));
  loader_->recycle(std::move(batch));
  return {};
}

// Micro-batches go through this rank's stage; the first stage reads their features, the last one their targets.
Status Worker::compute_planned(const data::StepPlan& plan, data::Range window, Report& report) {
  weight_ = layout_->samples(role_.rank, window);
  report.samples = weight_;
  if (weight_ == 0) {
    MOTLEY_TRY(start_reduce(0));
  }
  const std::vector<std::uint32_t> samples = own_samples(window, plan);
  std::optional<data::Batch> batch;
  torch::Tensor inputs, targets;
  if (weight_ > 0 && (layout_->is_first(role_.rank) || layout_->is_last(role_.rank))) {
    MOTLEY_ASSIGN(batch, load(samples, report));
    read_ahead(window, plan);
    if (layout_->is_first(role_.rank)) {
      MOTLEY_ASSIGN(inputs, make_inputs(*batch, *train_data_));
    }
    MOTLEY_TRY(ask_for_rows(Deadline::after(0)));
    if (layout_->is_last(role_.rank)) {
      targets = batch_targets(*batch, *train_data_, device_, dtype_);
    }
  }
  const auto number = static_cast<std::uint64_t>(step_);
  Pipeline::Hooks hooks;
  hooks.take_outputs = [&](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
    const torch::Tensor own = targets.narrow(0, rows.begin, rows.size());
    MOTLEY_ASSIGN(const nn::LossOutcome loss, nn::compute_loss(loss_, outputs, own, weight_));
    MOTLEY_TRY(see_outputs(outputs, own, report));
    return loss.output_gradient;
  };
  hooks.before_forward = [&](std::int64_t micro_batch, data::Range rows) {
    if (stage_timing_) {
      report.target += stage_timing_->forward.at(rows.size()) + stage_timing_->backward.at(rows.size());
      timing_->begin(stage_timing_->forward.at(rows.size()));
    }
    nn::seed_randomness(static_cast<std::uint64_t>(job_.seed), number, role_.rank, micro_batch,
                        std::span(samples).subspan(rows.begin, rows.size()));
  };
  bool is_last_backward = false;
  hooks.before_last_backward = [&] {
    is_last_backward = true;
    buckets_->arm([this, number](int bucket) {
      timing_->after_bucket(bucket);
      return reducer_->start(number, bucket, weight_);
    });
  };
  if (stage_timing_) {
    report.target = 0;
    hooks.after_forward = [&] { timing_->finish(); };
    hooks.before_backward = [&](data::Range rows) { timing_->begin(stage_timing_->backward.at(rows.size())); };
  }
  hooks.after_backward = [&]() -> Status {
    if (is_last_backward) {
      MOTLEY_TRY(buckets_->flush());
    }
    if (stage_timing_) {
      timing_->after_backward();
    }
    return {};
  };
  if (table_) {
    hooks.take_input_gradient = [&](data::Range rows, const torch::Tensor& gradient) {
      return table_->push(batch->ids, rows.begin, gradient, weight_);
    };
  }
  hooks.record = [&](Phase phase, double begin, double end) { timeline_->record(phase, step_, begin, end); };
  MOTLEY_TRY(pipeline_->train(number, window, inputs, step_deadline(), hooks));
  report.waited += pipeline_->waited();
  if (batch) {
    loader_->recycle(std::move(*batch));
  }
  return {};
}

// Claims shards from the counter that all ranks share until none is left. The number of samples is known only then, so
// gradients of sums are added up and divided at the end.
Status Worker::compute_pulled(const data::StepPlan& plan, data::Range window, Report& report) {
  const data::PullPlan shards(window, plan.shards);
  const Deadline deadline = step_deadline();
  for (;;) {
    MOTLEY_ASSIGN(const std::int64_t claimed, group_->fetch_add(0, 1, deadline));
    const std::int64_t index = claimed - pulled_;
    if (index >= shards.shards()) {
      break;
    }
    MOTLEY_ASSIGN(data::Batch batch, load(ledger_->samples(shards.shard(static_cast<std::uint32_t>(index))), report));
    MOTLEY_TRY(compute_batch(batch, 1, false, report));
    loader_->recycle(std::move(batch));
  }
  // Every rank claims once in vain, so all know where the next step's shards begin.
  pulled_ += shards.shards() + role_.size;
  weight_ = report.samples;
  if (weight_ > 0) {
    buckets_->scale(1 / weight_);
  }
  return start_reduce(weight_);
}

Status Worker::start_reduce(double weight) {
  buckets_->arm(
      [this, weight](int bucket) { return reducer_->start(static_cast<std::uint64_t>(step_), bucket, weight); });
  return buckets_->flush();
}

Status Worker::compute_batch(const data::Batch& batch, double divisor, bool last, Report& report) {
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  MOTLEY_ASSIGN(const torch::Tensor inputs, make_inputs(batch, *train_data_));
  const torch::Tensor targets = batch_targets(batch, *train_data_, device_, dtype_);
  const std::int64_t parts = std::min(job_.training.gradient_accumulation_steps, count);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - begin;
    MOTLEY_TRY(compute_micro_batch(batch, begin, inputs.narrow(0, begin, size), targets.narrow(0, begin, size), divisor,
                                   last && part == parts - 1, report));
  }
  return {};
}

// Asks for the rows of the next batch once it is known which they are, unless it has.
Status Worker::ask_for_rows(const Deadline& patience) {
  if (table_ && table_->may_read_ahead()) {
    if (const auto next = loader_->next_ids(patience); !next.empty()) {
      return table_->read_ahead(next);
    }
  }
  return {};
}

// A batch as the network reads it, with the rows that its samples look up: for test data as they are, without a cache.
Result<torch::Tensor> Worker::make_inputs(const data::Batch& batch, const data::Dataset& data) {
  if (!lookups_) {
    return batch_inputs(batch, data, device_, dtype_);
  }
  torch::Tensor rows;
  if (table_) {
    const double begin = monotonic_seconds();
    session_->set_phase(static_cast<std::uint64_t>(step_), "pulling rows");
    MOTLEY_ASSIGN(rows, &data == train_data_.get() ? table_->rows(batch.ids, step_deadline())
                                                   : table_->exact_rows(batch.ids, step_deadline()));
    timeline_->record(Phase::kLoad, step_, begin, monotonic_seconds());
  }
  const torch::Tensor features = batch_inputs(batch, data, torch::kCPU, torch::kFloat32);
  return nn::lookup_input(*lookups_, features, batch.ids, rows).to(device_, dtype_);
}

// `inputs` are those of the batch's samples from `first` on.
Status Worker::compute_micro_batch(const data::Batch& batch, std::int64_t first, const torch::Tensor& inputs,
                                   const torch::Tensor& targets, double divisor, bool last, Report& report) {
  const auto number = static_cast<std::uint64_t>(step_);
  const double samples = static_cast<double>(inputs.size(0));
  const double begin = monotonic_seconds();
  const auto& emulation = description(role_.rank).emulation;
  if (emulation) {
    // The micro-batch's own part of the step's time, less what loading took already.
    const auto predict_seconds = [&](double count) {
      return cluster::emulated_seconds(*emulation, number, static_cast<std::int64_t>(count),
                                       static_cast<std::uint64_t>(job_.seed), role_.rank);
    };
    const double target = predict_seconds(report.samples + samples);
    report.target = target;
    timing_->begin(std::max(0.0, target - (begin - step_begin_)));
  }
  report.samples += samples;
  nn::seed_randomness(
      static_cast<std::uint64_t>(job_.seed), number, role_.rank, micro_batch_,
      std::span(batch.samples).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(inputs.size(0))));

  session_->set_phase(number, "forward");
  const std::int64_t id = micro_batch_++;
  MOTLEY_TRY(ask_for_rows(Deadline::after(0)));
  MOTLEY_ASSIGN(const nn::Tensors outputs, stage_->forward(id, {inputs}));
  MOTLEY_ASSIGN(const nn::LossOutcome loss, nn::compute_loss(loss_, outputs.front(), targets, divisor));
  MOTLEY_TRY(see_outputs(outputs.front(), targets, report));
  timing_->after_forward();
  const double forwarded = monotonic_seconds();
  timeline_->record(Phase::kForward, step_, begin, forwarded);

  session_->set_phase(number, "backward");
  if (last) {
    buckets_->arm([this, number](int bucket) {
      timing_->after_bucket(bucket);
      return reducer_->start(number, bucket, weight_);
    });
  }
  MOTLEY_ASSIGN(const nn::Tensors input_gradients, stage_->backward(id, {loss.output_gradient}));
  if (table_) {
    MOTLEY_TRY(table_->push(batch.ids, first, input_gradients.front(), divisor));
  }
  if (last) {
    MOTLEY_TRY(buckets_->flush());
  }
  timing_->after_backward();
  timeline_->record(Phase::kBackward, step_, forwarded, monotonic_seconds());
  return {};
}

// Adds a micro-batch's loss and metric to the report.
Status Worker::see_outputs(const torch::Tensor& outputs, const torch::Tensor& targets, Report& report) const {
  nn::Evaluation seen(loss_, {metric_});
  MOTLEY_TRY(seen.add(outputs, targets));
  report.loss_sum += seen.totals()[0];
  report.loss_count += seen.totals()[1];
  report.metric_sum += seen.totals()[2];
  report.metric_count += seen.totals()[3];
  return {};
}

}  // namespace motley::train
