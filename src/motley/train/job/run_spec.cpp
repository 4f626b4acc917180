#include "motley/train/job/run_spec.h"

namespace motley::train {

using enum OptionKind;

const OptionTable<CheckpointSpec>& CheckpointSpec::options() {
  static const OptionTable<CheckpointSpec> options = {
      {{"every_steps", kInteger, "checkpoint every so many steps; 0: by time only", 0}, &CheckpointSpec::every_steps},
      {{"every", kSeconds, "checkpoint at least this often; 0: by steps only", 0}, &CheckpointSpec::every},
      {{"keep", kInteger, "checkpoints kept; 0: none is written, not even at the end", 0, 1000}, &CheckpointSpec::keep},
  };
  return options;
}

const OptionTable<EvaluateSpec>& EvaluateSpec::options() {
  static const OptionTable<EvaluateSpec> options = {
      {{"every_epochs", kReal, "evaluate on the test data this often and at the end; 0: at the end only; -1: never",
        -1},
       &EvaluateSpec::every_epochs},
  };
  return options;
}

const OptionTable<AcceptanceSpec>& AcceptanceSpec::options() {
  static const OptionTable<AcceptanceSpec> options = {
      {{"test_accuracy", kReal, "the summary says whether the test accuracy reached this; 0: not asked for", 0, 1},
       &AcceptanceSpec::test_accuracy},
      {{"test_auc", kReal, "the same for the area under the ROC curve on the test data, of two classes", 0, 1},
       &AcceptanceSpec::test_auc},
      {{"speedup_over_equal", kReal, "the same for the speed-up over the equal split, which baseline steps measure", 0},
       &AcceptanceSpec::speedup_over_equal},
      {{"wait_fraction", kReal, "the same for the largest fraction of step time that a worker waits", 0, 1},
       &AcceptanceSpec::wait_fraction},
  };
  return options;
}

const OptionTable<TimelineSpec>& TimelineSpec::options() {
  static const OptionTable<TimelineSpec> options = {
      {{"steps", kInteger,
        "about how many steps are recorded in timeline.json: the first half of this number, the others spread over the "
        "run",
        0, 100000},
       &TimelineSpec::steps},
  };
  return options;
}

}  // namespace motley::train
