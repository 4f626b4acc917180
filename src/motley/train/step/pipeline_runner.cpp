#include "motley/train/step/pipeline_runner.h"

#include "motley/nn/runtime.h"

namespace motley::train {

// A step.
struct PipelineRunner::Work {
  const Step& step;
  Report& report;
  std::vector<std::uint32_t> samples;
  std::optional<data::Batch> batch = {};
  torch::Tensor inputs = {}, targets = {};
  bool is_last_backward = false;
};

Status PipelineRunner::run(const Step& step, Report& report) {
  Work work{.step = step, .report = report, .samples = parts_.plan.samples(step, parts_.context.rank)};
  report.samples = layout_.samples(parts_.context.rank, step.window);
  const bool is_first = layout_.is_first(parts_.context.rank);
  const bool is_last = layout_.is_last(parts_.context.rank);
  if (report.samples == 0) {
    MOTLEY_TRY(parts_.sync.start(step, 0));
  } else if (is_first || is_last) {
    MOTLEY_ASSIGN(work.batch, parts_.reader.read(step, work.samples, report));
    parts_.reader.read_ahead(parts_.plan, step);
    if (is_first) {
      MOTLEY_ASSIGN(work.inputs, parts_.tensors.inputs(step.number, *work.batch, parts_.reader.dataset()));
    }
    MOTLEY_TRY(parts_.tensors.prefetch(Deadline::after(0)));
    if (is_last) {
      work.targets = parts_.tensors.targets(*work.batch, parts_.reader.dataset());
    }
  }
  Pipeline::Hooks hooks = make_hooks(work);
  if (emulation_) {
    add_emulation(hooks, work);
  }
  MOTLEY_TRY(pipeline_.train(static_cast<std::uint64_t>(step.number), step.window, work.inputs,
                             parts_.context.step_deadline(), hooks));
  report.waited += pipeline_.waited();
  if (work.batch) {
    parts_.reader.recycle(std::move(*work.batch));
  }
  return {};
}

Pipeline::Hooks PipelineRunner::make_hooks(Work& work) {
  const double samples = work.report.samples;
  Pipeline::Hooks hooks;
  hooks.take_outputs = [&, samples](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
    const torch::Tensor own = work.targets.narrow(0, rows.begin, rows.size());
    MOTLEY_ASSIGN(const nn::LossOutcome loss, nn::compute_loss(parts_.network.loss, outputs, own, samples));
    MOTLEY_TRY(parts_.network.measure(outputs, own, work.report));
    return loss.output_gradient;
  };
  hooks.before_forward = [&](std::int64_t micro_batch, data::Range rows) {
    nn::seed_randomness(parts_.network.seed, static_cast<std::uint64_t>(work.step.number), parts_.context.rank,
                        micro_batch, std::span(work.samples).subspan(rows.begin, rows.size()));
  };
  hooks.before_last_backward = [&, samples] {
    work.is_last_backward = true;
    parts_.sync.arm(work.step, samples, [this](int bucket) {
      if (emulation_) emulation_->timing.after_bucket(bucket);
    });
  };
  hooks.after_backward = [&] { return work.is_last_backward ? parts_.sync.flush() : Status(); };
  if (parts_.tensors.table() != nullptr) {
    hooks.take_input_gradient = [&, samples](data::Range rows, const torch::Tensor& gradient) {
      return parts_.tensors.push(*work.batch, rows.begin, gradient, samples);
    };
  }
  hooks.record = [&](Phase phase, double begin, double end) {
    parts_.context.timeline.record(phase, work.step.number, begin, end);
  };
  return hooks;
}

// Each pass takes as long as the emulated device does.
void PipelineRunner::add_emulation(Pipeline::Hooks& hooks, Work& work) {
  const EmulatedStageTiming& stage = emulation_->stage;
  EmulatedTiming& timing = emulation_->timing;
  work.report.target = 0;
  hooks.before_forward = [&, seed = hooks.before_forward](std::int64_t micro_batch, data::Range rows) {
    work.report.target += stage.forward.at(rows.size()) + stage.backward.at(rows.size());
    timing.begin(stage.forward.at(rows.size()));
    seed(micro_batch, rows);
  };
  hooks.after_forward = [&] { timing.finish(); };
  hooks.before_backward = [&](data::Range rows) { timing.begin(stage.backward.at(rows.size())); };
  hooks.after_backward = [&, flush = hooks.after_backward]() -> Status {
    MOTLEY_TRY(flush());
    timing.after_backward();
    return {};
  };
}

}  // namespace motley::train
