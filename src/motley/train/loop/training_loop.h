// The training loop of a rank: step after step until the job is done, the same on every rank.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/checkpoints.h"
#include "motley/train/loop/emulation.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/replanner.h"
#include "motley/train/loop/reporter.h"
#include "motley/train/loop/samples.h"

namespace motley::train {

struct LoopOptions {
  std::int64_t steps = 0;
  double evaluate_every_epochs = 1;  // 0: only at the end; < 0: never
  std::uint32_t staleness = 0;       // steps that a rank may be ahead of the slowest
  std::function<double(std::int64_t step)> learning_rate;
  std::function<bool()> is_asked_to_stop;
};

// What the loop puts together. The first six change where the run moves to another plan.
struct LoopParts {
  BatchPlan* plan = nullptr;
  StepRunner* runner = nullptr;
  StepRunner* work_queue = nullptr;  // of steps whose shards the ranks claim; a planned run has none
  GradientSync* sync = nullptr;
  Evaluator* evaluator = nullptr;
  ModelState* model = nullptr;
  SampleAudit* audit = nullptr;
  EmulationWatch* emulation = nullptr;
  Reporter* reporter = nullptr;
  Checkpoints* checkpoints = nullptr;
  PlanMover* mover = nullptr;
  ElasticRanks* elastic = nullptr;  // null: the loss of a rank ends the run
};

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

class TrainingLoop {
 public:
  // All that is referred to must outlive this object.
  TrainingLoop(LoopOptions options, const RankContext& context, const LoopParts& parts, RunProgress& progress)
      : options_(std::move(options)), context_(context), parts_(parts), progress_(progress) {}

  // From the step after that of `progress` on. kInterrupted where a rank was asked to stop, with a checkpoint written;
  // kDiverged where a loss or a gradient is not finite, before the optimizer's step. kPeerLost, with a checkpoint
  // written, where fewer ranks are left than the run goes on with.
  Status run();

 private:
  // What all do together after a step, in this order.
  enum Duty : unsigned { kEvaluate = 1, kSave = 2, kMove = 4, kAudit = 8, kPart = 16 };
  static constexpr unsigned kShared = kEvaluate | kSave | kMove;  // for which all have to meet

  Status advance();
  Status begin_step();
  Status compute();
  Status reduce();
  Result<AllReports> exchange_reports();
  Status commit(AllReports reports);
  Status do_duties();
  void end();

  bool goes_on_after(const Error& error) const;
  Status regroup();
  Status try_to_regroup();
  Status record_samples(const std::vector<Report>& reports);
  Status check_finite(const Step& step, const std::vector<Report>& reports) const;
  void record_times(const Step& step, const std::vector<Report>& reports, double gathered, double ended) const;
  Status learn_from(const AllReports& reports, double ended);
  bool synchronises_in(const Step& step) const;
  bool evaluation_is_due(double epochs) const;
  Status evaluate();
  Status audit();
  Status save();

  const LoopOptions options_;
  const RankContext& context_;
  const LoopParts& parts_;
  RunProgress& progress_;
  std::vector<FinishedStep> unreported_;  // since all ranks met
  std::optional<StepUnderWay> under_way_;
  unsigned duties_ = 0;
  bool stop_ = false;
  bool has_ended_ = false;  // all steps are done, and what is left are duties

  // Of an elastic run.
  std::vector<std::vector<int>> new_epochs_;  // ranks of each epoch, since all who are left have had one state
  std::vector<std::vector<int>> epochs_;      // and before, whose losses no committed step has seen
  std::int64_t changed_step_ = 0;             // the first that sees them
  std::vector<Report> last_reports_;          // of the step that was committed last
  std::vector<int> told_;                     // ranks that were there when the events last said who is
};

}  // namespace motley::train
