// How a job learns: its batches and their split among the workers, the optimizer and its learning rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/serial/options.h"

namespace motley::train {

// How long and on how much at once is trained; keys without a prefix.
struct TrainingSpec {
  std::int64_t global_batch_size = 256;
  std::int64_t gradient_accumulation_steps = 1;
  double epochs = 1;
  std::int64_t steps = 0;
  std::string loss = "cross-entropy";

  static const OptionTable<TrainingSpec>& options();
  Status check() const;
};

// Key optimizer.
struct OptimizerSpec {
  std::string name = "sgd";
  double learning_rate = 0.05;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
  std::vector<double> betas = {0.9, 0.999};
  double epsilon = 1e-8;

  static const OptionTable<OptimizerSpec>& options();
  Status check() const;
};

// Key lr_scheduler.
struct LrSchedulerSpec {
  std::string name = "constant";
  std::int64_t warmup_steps = 0;
  std::int64_t step_size = 1000;
  double gamma = 0.1;
  double min_lr_ratio = 0;

  static const OptionTable<LrSchedulerSpec>& options();
};

// How a step's samples are split among the workers, key batch_split.
struct BatchSplitSpec {
  std::string mode = "dynamic";
  std::vector<std::int64_t> fixed;
  std::string replay;

  static const OptionTable<BatchSplitSpec>& options();
  Status check() const;
};

// Steps with the equal split, for comparison, key baseline.
struct BaselineSpec {
  std::int64_t every = 0;
  std::int64_t steps = 3;

  static const OptionTable<BaselineSpec>& options();
};

}  // namespace motley::train
