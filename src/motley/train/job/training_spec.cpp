#include "motley/train/job/training_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<TrainingSpec>& TrainingSpec::options() {
  static const OptionTable<TrainingSpec> options = {
      {{"global_batch_size", kInteger, "samples of one step, over all workers", 1, 1 << 30},
       &TrainingSpec::global_batch_size},
      {{"gradient_accumulation_steps", kInteger, "micro-batches into which a worker cuts its part of a step", 1, 4096},
       &TrainingSpec::gradient_accumulation_steps},
      {{"epochs", kReal, "passes over the training data", 0, 1e6}, &TrainingSpec::epochs},
      {{"steps", kInteger, "stop after this many steps; 0: by epochs", 0}, &TrainingSpec::steps},
      {choice("loss", "loss, averaged over the samples of a step", {"cross-entropy", "bce", "mse"}),
       &TrainingSpec::loss},
  };
  return options;
}

Status TrainingSpec::check() const {
  if (epochs == 0 && steps == 0) {
    return fail(ErrorCode::kInvalidInput, "epochs and steps are both 0; give one of them");
  }
  return {};
}

const OptionTable<OptimizerSpec>& OptimizerSpec::options() {
  static const OptionTable<OptimizerSpec> options = {
      {choice("name", "optimizer", {"sgd", "adam", "adamw"}), &OptimizerSpec::name},
      {{"learning_rate", kReal, "peak learning rate, which lr_scheduler scales", 0}, &OptimizerSpec::learning_rate},
      {{"momentum", kReal, "momentum of sgd", 0, 0.99999}, &OptimizerSpec::momentum},
      {{"nesterov", kBoolean, "Nesterov's form of the momentum"}, &OptimizerSpec::nesterov},
      {{"weight_decay", kReal, "weight decay", 0}, &OptimizerSpec::weight_decay},
      {{"betas", kReals, "decay rates of adam and adamw", 0, 0.9999999}, &OptimizerSpec::betas},
      {{"epsilon", kReal, "added to adam's denominator", 0}, &OptimizerSpec::epsilon},
  };
  return options;
}

Status OptimizerSpec::check() const {
  if (nesterov && (momentum == 0 || name != "sgd")) {
    return fail(ErrorCode::kInvalidInput,
                "optimizer.nesterov: true needs optimizer.name sgd and optimizer.momentum above 0");
  }
  if (betas.size() != 2) {
    return fail(ErrorCode::kInvalidInput, "optimizer.betas: {} numbers are given; accepted: two, such as [0.9, 0.999]",
                betas.size());
  }
  return {};
}

const OptionTable<LrSchedulerSpec>& LrSchedulerSpec::options() {
  static const OptionTable<LrSchedulerSpec> options = {
      {choice("name", "learning-rate scheduler", {"constant", "step", "cosine"}), &LrSchedulerSpec::name},
      {{"warmup_steps", kInteger, "steps of linear warm-up", 0}, &LrSchedulerSpec::warmup_steps},
      {{"step_size", kInteger, "step: multiply by lr_scheduler.gamma every so many steps", 1},
       &LrSchedulerSpec::step_size},
      {{"gamma", kReal, "step: the factor", 0, 1}, &LrSchedulerSpec::gamma},
      {{"min_lr_ratio", kReal, "cosine: learning rate at the last step, as a fraction of optimizer.learning_rate", 0,
        1},
       &LrSchedulerSpec::min_lr_ratio},
  };
  return options;
}

const OptionTable<BatchSplitSpec>& BatchSplitSpec::options() {
  static const OptionTable<BatchSplitSpec> options = {
      {choice("mode",
              "how a step's samples are split among the workers: dynamic follows measured speed (and takes from a work "
              "queue under random delays)",
              {"dynamic", "equal", "fixed", "replay", "work-queue"}, {{"pull", "work-queue"}}),
       &BatchSplitSpec::mode},
      {{"fixed", kIntegers, "fixed: samples of each worker in a full batch", 0}, &BatchSplitSpec::fixed},
      {{"replay", kPath, "replay: run folder whose recorded splits are used again"}, &BatchSplitSpec::replay},
  };
  return options;
}

Status BatchSplitSpec::check() const {
  if (mode == "replay" && replay.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "batch_split.replay: batch_split.mode replay needs the run folder whose shares are used again");
  }
  return {};
}

const OptionTable<BaselineSpec>& BaselineSpec::options() {
  static const OptionTable<BaselineSpec> options = {
      {{"every", kInteger,
        "run baseline steps with the equal split every so many steps, to measure the gain in the same run; 0: never",
        0},
       &BaselineSpec::every},
      {{"steps", kInteger, "baseline steps in a row", 1, 1000}, &BaselineSpec::steps},
  };
  return options;
}

}  // namespace motley::train
