#include "motley/train/step/bucketed_gradient_sync.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace motley::train {

BucketedGradientSync::BucketedGradientSync(const RankContext& context, collective::Group& peers,
                                           const LocalNetwork& network, BatchTensors& tensors, Parts parts,
                                           Options options)
    : context_(context),
      peers_(peers),
      network_(network),
      tensors_(tensors),
      parts_(std::move(parts)),
      server_(parts_.method.server_optimizer),
      options_(options) {
  if (nn::has_batch_norm(*network_.stage)) batch_norm_.emplace(*network_.stage);
}

Status BucketedGradientSync::serve_weights(kernels::UpdateRule rule, const Deadline& deadline) {
  if (server_ != nullptr) {
    MOTLEY_ASSIGN(served_, ServedWeights::begin(*server_, *parts_.buckets, *parts_.optimizer, rule, deadline));
  }
  return {};
}

void BucketedGradientSync::begin(const Step& step) {
  if (server_ != nullptr) {
    server_->set_learning_rate(step.learning_rate);
    server_->begin_step(step.window.size(), step.synchronises);
  }
  tensors_.begin_step();
  if (!network_.is_synthetic) {
    parts_.buckets->zero();
  }
  if (batch_norm_) {
    batch_norm_->begin_step();
  }
}

void BucketedGradientSync::arm(const Step& step, double weight, std::function<void(int bucket)> on_bucket) {
  parts_.buckets->arm(
      [this, number = static_cast<std::uint64_t>(step.number), weight, on_bucket = std::move(on_bucket)](int bucket) {
        on_bucket(bucket);
        return parts_.method.reducer->start(number, bucket, weight);
      });
}

Status BucketedGradientSync::wait(const Step& step, double seconds, Report& report) {
  MOTLEY_TRY(tensors_.finish_step(report));
  context_.set_phase(step.number, "gradient synchronisation");
  const Deadline deadline = Deadline::after(seconds);
  for (int bucket = 0; bucket < parts_.buckets->count(); ++bucket) {
    MOTLEY_ASSIGN(const collective::Outcome outcome, parts_.method.reducer->wait(bucket, deadline));
    report.staleness = std::max<double>(report.staleness, outcome.staleness);
    MOTLEY_TRY(served_ ? served_->fetch(bucket) : parts_.buckets->fetch(bucket));
  }
  if (parts_.tied) {
    MOTLEY_TRY(parts_.tied->add_up(static_cast<std::uint64_t>(step.number), deadline));
  }
  if (batch_norm_) {
    std::vector<double> sums = batch_norm_->contribution(report.samples);
    MOTLEY_TRY(peers_.all_reduce_sum(sums, deadline));
    batch_norm_->finish_step(sums);
  }
  return {};
}

Status BucketedGradientSync::update(const Step& step) {
  context_.set_phase(step.number, "optimizer");
  if (served_ || network_.is_synthetic) {
    return {};
  }
  const double end = monotonic_seconds() + update_seconds_;
  if (options_.max_grad_norm > 0) {
    MOTLEY_TRY(clip());
  }
  MOTLEY_TRY(parts_.optimizer->step(step.learning_rate));
  if (update_seconds_ > 0) {
    SteadyClock::instance().sleep_until(end);
  }
  return {};
}

// By the norm of the whole network's gradient, of which each stage has a part and each of its ranks the same one. The
// factor is bitwise the same everywhere.
Status BucketedGradientSync::clip() const {
  const nn::NamedTensors& parameters = network_.stage->parameters();
  MOTLEY_ASSIGN(double norm, nn::gradient_norm(without_copies(parameters)));
  if (options_.is_planned) {
    double squares[] = {norm * norm / options_.replicas};
    MOTLEY_TRY(context_.group.all_reduce_sum(squares, context_.step_deadline()));
    norm = std::sqrt(squares[0]);
  }
  return norm > options_.max_grad_norm ? nn::scale_gradients(parameters, options_.max_grad_norm / norm) : Status();
}

Result<nn::NamedTensors> BucketedGradientSync::optimizer_state(const Deadline& deadline) const {
  return served_ ? served_->optimizer_state(deadline) : Result<nn::NamedTensors>(parts_.optimizer->state());
}

nn::NamedTensors BucketedGradientSync::without_copies(nn::NamedTensors tensors) const {
  return parts_.tied ? parts_.tied->without_copies(std::move(tensors)) : tensors;
}

}  // namespace motley::train
