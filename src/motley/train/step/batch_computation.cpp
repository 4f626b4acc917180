#include "motley/train/step/batch_computation.h"

#include <algorithm>
#include <span>

namespace motley::train {

struct BatchComputation::MicroBatch {
  const data::Batch& batch;
  std::int64_t first;  // of the batch's samples
  torch::Tensor inputs, targets;
  double divisor;
  bool last;  // of the step

  std::span<const std::uint32_t> samples() const {
    return std::span(batch.samples).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(inputs.size(0)));
  }
};

BatchComputation::BatchComputation(const RankContext& context, const LocalNetwork& network, BatchTensors& tensors,
                                   GradientSync& sync, const data::Dataset& dataset, Options options, int buckets)
    : context_(context),
      network_(network),
      tensors_(tensors),
      sync_(sync),
      dataset_(dataset),
      options_(std::move(options)),
      timing_(SteadyClock::instance(), buckets) {}

Status BatchComputation::run(const Step& step, const data::Batch& batch, double divisor, bool last, Report& report) {
  if (step.number != step_) {
    step_ = step.number;
    next_ = 0;
  }
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  MOTLEY_ASSIGN(const torch::Tensor inputs, tensors_.inputs(step.number, batch, dataset_));
  const torch::Tensor targets = tensors_.targets(batch, dataset_);
  const std::int64_t parts = std::min(options_.micro_batches, count);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - begin;
    MOTLEY_TRY(run(step,
                   MicroBatch{batch, begin, inputs.narrow(0, begin, size), targets.narrow(0, begin, size), divisor,
                              last && part == parts - 1},
                   report));
  }
  return {};
}

Status BatchComputation::run(const Step& step, const MicroBatch& part, Report& report) {
  const double samples = static_cast<double>(part.inputs.size(0));
  const double begin = monotonic_seconds();
  if (options_.emulation) {
    // The micro-batch's own part of the step's time, less what loading took already.
    report.target =
        cluster::emulated_seconds(*options_.emulation, static_cast<std::uint64_t>(step.number),
                                  static_cast<std::int64_t>(report.samples + samples), network_.seed, context_.rank);
    timing_.begin(std::max(0.0, report.target - (begin - step.begin)));
  }
  report.samples += samples;
  const std::int64_t id = next_++;
  network_.seed_randomness(step, context_.rank, id, part.samples());

  context_.set_phase(step.number, "forward");
  MOTLEY_TRY(tensors_.prefetch(Deadline::after(0)));
  MOTLEY_ASSIGN(const nn::Tensors outputs, network_.stage->forward(id, {part.inputs}));
  MOTLEY_ASSIGN(const nn::LossOutcome loss,
                nn::compute_loss(network_.loss, outputs.front(), part.targets, part.divisor));
  MOTLEY_TRY(network_.measure(outputs.front(), part.targets, report));
  timing_.after_forward();
  const double forwarded = monotonic_seconds();
  context_.timeline.record(Phase::kForward, step.number, begin, forwarded);

  context_.set_phase(step.number, "backward");
  if (part.last) {
    sync_.arm(step, part.divisor, [this](int bucket) { timing_.after_bucket(bucket); });
  }
  MOTLEY_ASSIGN(const nn::Tensors input_gradients, network_.stage->backward(id, {loss.output_gradient}));
  if (tensors_.table() != nullptr) {
    MOTLEY_TRY(tensors_.push(part.batch, part.first, input_gradients.front(), part.divisor));
  }
  if (part.last) {
    MOTLEY_TRY(sync_.flush());
  }
  timing_.after_backward();
  context_.timeline.record(Phase::kBackward, step.number, forwarded, monotonic_seconds());
  return {};
}

}  // namespace motley::train
