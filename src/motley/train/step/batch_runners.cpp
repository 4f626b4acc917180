#include "motley/train/step/batch_runners.h"

#include <algorithm>
#include <optional>
#include <span>

#include "motley/nn/runtime.h"

namespace motley::train {

BatchComputation::BatchComputation(const RunnerParts& parts, Options options, int buckets)
    : parts_(parts), options_(std::move(options)), timing_(SteadyClock::instance(), buckets) {}

Status BatchComputation::run(const Step& step, const data::Batch& batch, double divisor, bool last, Report& report) {
  if (step.number != step_) {
    step_ = step.number;
    next_ = 0;
  }
  const auto& [context, network, tensors, reader, plan, sync] = parts_;
  MOTLEY_ASSIGN(const torch::Tensor inputs, tensors.inputs(step.number, batch, reader.dataset()));
  const torch::Tensor targets = tensors.targets(batch, reader.dataset());
  const auto count = static_cast<std::int64_t>(batch.samples.size());
  const std::int64_t parts = std::clamp<std::int64_t>(count / options_.min_micro_batch, 1, options_.micro_batches);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = count * part / parts;
    const std::int64_t size = count * (part + 1) / parts - first;
    const torch::Tensor own_targets = targets.narrow(0, first, size);
    const bool is_last = last && part == parts - 1;
    const double begin = monotonic_seconds();
    report.samples += static_cast<double>(size);
    if (options_.emulation) {
      // The micro-batch's own part of the step's time, less what loading took already.
      report.target = cluster::emulated_seconds(*options_.emulation, static_cast<std::uint64_t>(step.number),
                                                static_cast<std::int64_t>(report.samples), network.seed, context.rank);
      timing_.begin(std::max(0.0, report.target - (begin - step.begin)));
    }
    const std::int64_t id = next_++;
    nn::seed_randomness(
        network.seed, static_cast<std::uint64_t>(step.number), context.rank, id,
        std::span(batch.samples).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(size)));

    context.set_phase(step.number, "forward");
    MOTLEY_TRY(tensors.prefetch(Deadline::after(0)));
    MOTLEY_ASSIGN(const nn::Tensors outputs, network.stage->forward(id, {inputs.narrow(0, first, size)}));
    MOTLEY_ASSIGN(const nn::LossOutcome loss, nn::compute_loss(network.loss, outputs.front(), own_targets, divisor));
    samples_ += static_cast<std::uint64_t>(size);
    MOTLEY_TRY(network.measure(outputs.front(), own_targets, report));
    timing_.after_forward();
    const double forwarded = monotonic_seconds();
    context.timeline.record(Phase::kForward, step.number, begin, forwarded);

    context.set_phase(step.number, "backward");
    if (is_last) sync.arm(step, divisor, [this](int bucket) { timing_.after_bucket(bucket); });
    MOTLEY_ASSIGN(const nn::Tensors input_gradients, network.stage->backward(id, {loss.output_gradient}));
    if (tensors.table() != nullptr) MOTLEY_TRY(tensors.push(batch, first, input_gradients.front(), divisor));
    if (is_last) MOTLEY_TRY(sync.flush());
    timing_.after_backward();
    context.timeline.record(Phase::kBackward, step.number, forwarded, monotonic_seconds());
  }
  return {};
}

Status DataParallelRunner::run(const Step& step, Report& report) {
  const std::vector<std::uint32_t> samples = parts_.plan.samples(step, parts_.context.rank);
  if (samples.empty()) {
    return parts_.sync.start(step, 0);
  }
  MOTLEY_ASSIGN(data::Batch batch, parts_.reader.read(step, samples, report));
  parts_.reader.read_ahead(parts_.plan, step);
  MOTLEY_TRY(computation_.run(step, batch, static_cast<double>(samples.size()), true, report));
  parts_.reader.recycle(std::move(batch));
  return {};
}

// The mean of both parts, from that of the first, which stands in the buckets.
Status DataParallelRunner::add(const Step& step, std::span<const std::uint32_t> samples, Report& report) {
  const double before = report.samples;
  const double all = before + static_cast<double>(samples.size());
  // An emulated device takes as long for these as if it had never waited.
  Step continued = step;
  continued.begin = monotonic_seconds() - report.compute;
  std::optional<data::Batch> batch;  // read first: where that fails, all of this comes again
  if (!samples.empty()) {
    MOTLEY_ASSIGN(batch, parts_.reader.read(continued, samples, report));
  }
  if (before > 0) parts_.sync.resume();
  if (before > 0 && batch) parts_.sync.scale(before / all);
  if (batch) {
    MOTLEY_TRY(computation_.run(continued, *batch, all, false, report));
    parts_.reader.recycle(std::move(*batch));
  }
  return parts_.sync.start(step, all);
}

Status WorkQueueRunner::run(const Step& step, Report& report) {
  const data::PullPlan shards(step.window, step.plan.shards);
  const Deadline deadline = parts_.context.step_deadline();
  for (;;) {
    MOTLEY_ASSIGN(const std::int64_t claimed, parts_.context.group.fetch_add(0, 1, deadline));
    const std::int64_t index = claimed - claimed_;
    if (index >= shards.shards()) {
      break;
    }
    const data::Range shard = shards.shard(static_cast<std::uint32_t>(index));
    MOTLEY_ASSIGN(data::Batch batch, parts_.reader.read(step, parts_.plan.samples_at(shard), report));
    MOTLEY_TRY(computation_.run(step, batch, 1, false, report));
    parts_.reader.recycle(std::move(batch));
  }
  // Every rank claims once in vain, so all know where the next step's shards begin.
  claimed_ += shards.shards() + parts_.context.size;
  if (report.samples > 0) {
    parts_.sync.scale(1 / report.samples);
  }
  return parts_.sync.start(step, report.samples);
}

}  // namespace motley::train
