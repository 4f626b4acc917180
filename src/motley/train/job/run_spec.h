// What a run keeps, measures and is judged by.
#pragma once

#include <cstdint>

#include "motley/serial/options.h"

namespace motley::train {

// Key checkpoint.
struct CheckpointSpec {
  std::int64_t every_steps = 0;
  double every = 600;  // seconds
  std::int64_t keep = 2;

  static const OptionTable<CheckpointSpec>& options();
};

// Key evaluate.
struct EvaluateSpec {
  double every_epochs = 1;  // -1: never, not at the end either

  static const OptionTable<EvaluateSpec>& options();
};

// What the summary holds the run to, key acceptance; 0: not asked for.
struct AcceptanceSpec {
  double test_accuracy = 0;
  double test_auc = 0;
  double speedup_over_equal = 0;
  double wait_fraction = 0;

  static const OptionTable<AcceptanceSpec>& options();
};

// Key timeline.
struct TimelineSpec {
  std::int64_t steps = 200;

  static const OptionTable<TimelineSpec>& options();
};

}  // namespace motley::train
