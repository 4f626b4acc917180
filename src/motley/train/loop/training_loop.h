// The training loop of a rank: step after step until the job is done, the same on every rank.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "motley/base/result.h"
#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/checkpoints.h"
#include "motley/train/loop/elastic_stages.h"
#include "motley/train/loop/emulation.h"
#include "motley/train/loop/loop_state.h"
#include "motley/train/loop/parts.h"
#include "motley/train/loop/regrouping.h"
#include "motley/train/loop/replanner.h"
#include "motley/train/loop/replica_check.h"
#include "motley/train/loop/reporter.h"
#include "motley/train/loop/samples.h"

namespace motley::train {

// Where ranks may be at different steps, all meet after so many.
inline constexpr std::size_t kMaxStepsApart = 20;

struct LoopOptions {
  std::int64_t steps = 0;
  double evaluate_every_epochs = 1;  // 0: only at the end; < 0: never
  std::uint32_t staleness = 0;       // steps that a rank may be ahead of the slowest
  std::function<double(std::int64_t step)> learning_rate;
  std::function<bool()> is_asked_to_stop;                          // the run, with a checkpoint
  std::function<bool()> is_asked_to_leave = [] { return false; };  // of an elastic run: this rank alone
};

// What the loop puts together. The first six change where the run moves to another plan, or its stages are built anew.
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
  ElasticStages* stages = nullptr;  // of an elastic run with a plan
};

class TrainingLoop {
 public:
  // All that is referred to must outlive this object.
  TrainingLoop(LoopOptions options, const RankContext& context, const LoopParts& parts, RunProgress& progress);

  // From the step after that of `progress` on. kInterrupted where a rank was asked to stop, with a checkpoint written;
  // kLeft where this rank was asked to leave and others go on, after a step, with all that was to do done;
  // kDiverged where a loss or a gradient is not finite, before the optimizer's step. kPeerLost, with a checkpoint
  // written, where fewer ranks are left than the run goes on with.
  Status run();

 private:
  Status advance();
  Status begin_step();
  Status compute();
  Status reduce();
  Result<AllReports> exchange_reports();
  Status commit(AllReports reports);
  Status do_duties();
  void end();

  bool goes_on_after(const Error& error) const;
  bool leaves() const;
  Status record_samples(const std::vector<Report>& reports);
  Status check_finite(const Step& step, const std::vector<Report>& reports) const;
  void record_times(const Step& step, const std::vector<Report>& reports, double gathered, double ended) const;
  Status learn_from(const AllReports& reports, double ended);
  bool synchronises_in(const Step& step) const;
  bool evaluation_is_due(double epochs) const;
  Status compare_replicas();
  Status evaluate();
  Status audit();
  Status save();

  const LoopOptions options_;
  const RankContext& context_;
  const LoopParts& parts_;
  RunProgress& progress_;
  LoopState state_;
  std::optional<Regrouping> regrouping_;  // of an elastic run
  ReplicaCheck replica_check_;
  bool has_told_workers_ = false;  // how many there are, as the one who writes
};

}  // namespace motley::train
