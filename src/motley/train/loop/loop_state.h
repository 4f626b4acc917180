// Where the training loop of a rank stands between two of its operations: what is begun, and what is still to be done.
#pragma once

#include <optional>
#include <vector>

#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/step.h"

namespace motley::train {

// What all do together after a step, in this order.
enum Duty : unsigned { kEvaluate = 1, kSave = 2, kMove = 4, kAudit = 8, kPart = 16 };
inline constexpr unsigned kSharedDuties = kEvaluate | kSave | kMove;  // for which all have to meet

// A step that is begun and not committed.
struct StepUnderWay {
  Step step;
  Report report;  // this rank's
  double cpu_before = 0;
  std::uint64_t sent_before = 0;
  WindowParts parts;         // of the window: who computes what
  std::size_t computed = 0;  // of this rank's parts
  bool is_computed = false;
  bool is_started = false;  // the synchronisation of all buckets
  bool is_reduced = false;
};

struct LoopState {
  std::vector<FinishedStep> unreported;  // since all ranks met
  std::optional<StepUnderWay> under_way;
  WindowParts kept;  // of a planned run, of the step after the last: as in Step
  unsigned duties = 0;
  bool stops = false;
  std::vector<int> leaving;  // ranks that go after what is left to do of this step
  bool has_ended = false;    // all steps are done, and what is left are duties
};

}  // namespace motley::train
