#include "motley/train/step/pipeline_runner.h"

#include <algorithm>
#include <map>
#include <utility>

#include "motley/nn/runtime.h"

namespace motley::train {
namespace {

void add_measured(const Report& part, Report& report) {
  for (double Report::* figure : {&Report::loss_sum, &Report::loss_count, &Report::metric_sum, &Report::metric_count}) {
    report.*figure += part.*figure;
  }
}

}  // namespace

// A step.
struct PipelineRunner::Work {
  const Step& step;
  Report& report;
  std::vector<std::uint32_t> samples;
  std::optional<data::Batch> batch = {};
  torch::Tensor inputs = {}, targets = {};
  std::map<std::uint32_t, Report> measured = {};  // by a micro-batch's first row, until the gradient has its rows
  bool is_last_backward = false;
};

Status PipelineRunner::run(const Step& step, Report& report) {
  Work work{.step = step, .report = report, .samples = parts_.plan.samples(step, parts_.context.rank)};
  begin(work);
  const auto adds = [&](const StageLayout::MicroBatch& part) {
    return part.lacks(layout_.find_stage(parts_.context.rank)) && layout_.rows(parts_.context.rank, part).size() > 0;
  };
  if (std::ranges::none_of(layout_.micro_batches(step.window, step.kept), adds)) {
    MOTLEY_TRY(parts_.sync.start(step, report.samples));
  }
  if (!work.samples.empty()) MOTLEY_TRY(read(work));
  Pipeline::Hooks hooks = make_hooks(work);
  if (emulation_) {
    add_emulation(hooks, work);
  }
  MOTLEY_TRY(pipeline_.train(static_cast<std::uint64_t>(step.number), step.window, step.kept, work.inputs,
                             parts_.context.step_deadline(), hooks));
  report.waited += pipeline_.waited();
  if (work.batch) {
    parts_.reader.recycle(std::move(*work.batch));
  }
  return {};
}

// With the gradients that this rank has of the step, or with none.
void PipelineRunner::begin(Work& work) {
  const Step& step = work.step;
  Report& report = work.report;
  report.samples = layout_.samples(parts_.context.rank, step.window, step.kept);
  if (step.kept.empty() || step.kept[static_cast<std::size_t>(parts_.context.rank)].empty()) {
    kept_ = {.step = step.number, .rows = {}, .samples = 0, .gradients = {}, .report = {}};
  } else {
    MOTLEY_INVARIANT(kept_.step == step.number, "what is kept is of step {} and not {}", kept_.step, step.number);
    parts_.sync.go_on_with(std::exchange(kept_.gradients, {}), kept_.samples / report.samples);
    add_measured(kept_.report, report);
    report.samples_hash = kept_.report.samples_hash;
  }
  kept_.samples = report.samples;
}

// What the stage needs of the samples.
Status PipelineRunner::read(Work& work) {
  const bool is_first = layout_.is_first(parts_.context.rank);
  const bool is_last = layout_.is_last(parts_.context.rank);
  if (!is_first && !is_last) return {};
  // They count as used once the gradient has them.
  const double hash = work.report.samples_hash;
  MOTLEY_ASSIGN(work.batch, parts_.reader.read(work.step, work.samples, work.report));
  work.report.samples_hash = hash;
  parts_.reader.read_ahead(parts_.plan, work.step);
  if (is_first) {
    MOTLEY_ASSIGN(work.inputs, parts_.tensors.inputs(work.step.number, *work.batch, parts_.reader.dataset()));
  }
  MOTLEY_TRY(parts_.tensors.prefetch(Deadline::after(0)));
  if (is_last) work.targets = parts_.tensors.targets(*work.batch, parts_.reader.dataset());
  return {};
}

StepRunner::Kept PipelineRunner::keep() {
  Kept kept = kept_;
  if (!kept.rows.empty() && kept.gradients.empty()) kept.gradients = parts_.sync.own_gradients();
  return kept;
}

Pipeline::Hooks PipelineRunner::make_hooks(Work& work) {
  const double samples = std::max(1.0, work.report.samples);
  Pipeline::Hooks hooks;
  hooks.take_outputs = [&, samples](data::Range rows, const torch::Tensor& outputs) -> Result<torch::Tensor> {
    const torch::Tensor own = work.targets.narrow(0, rows.begin, rows.size());
    MOTLEY_ASSIGN(const nn::LossOutcome loss, nn::compute_loss(parts_.network.loss, outputs, own, samples));
    MOTLEY_TRY(parts_.network.measure(outputs, own, work.measured[rows.begin]));
    return loss.output_gradient;
  };
  hooks.added = [&](data::Range rows, data::Range positions) {
    const Report& measured = work.measured[rows.begin];
    add_measured(measured, work.report);
    if (layout_.is_first(parts_.context.rank)) {
      work.report.samples_hash =
          hash_samples(work.report.samples_hash, std::span(work.samples).subspan(rows.begin, rows.size()));
    }
    if (!keeps()) return;
    kept_.rows.push_back(positions);
    kept_.report = work.report;
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
  hooks.after_backward = [&] { return std::exchange(work.is_last_backward, false) ? parts_.sync.flush() : Status(); };
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
    work.report.target += stage.forward.at(rows.size());
    timing.begin(stage.forward.at(rows.size()));
    seed(micro_batch, rows);
  };
  hooks.after_forward = [&] { timing.finish(); };
  hooks.before_backward = [&](data::Range rows) {
    work.report.target += stage.backward.at(rows.size());
    timing.begin(stage.backward.at(rows.size()));
  };
  hooks.after_backward = [&, flush = hooks.after_backward]() -> Status {
    MOTLEY_TRY(flush());
    timing.after_backward();
    return {};
  };
}

}  // namespace motley::train
