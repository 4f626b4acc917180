// A work queue: ranks claim shards of the step's window from a counter that all share until none is left, so that
// whoever is faster computes more. The number of a rank's samples is known only then: gradients of sums are added up,
// and divided at the end.
#pragma once

#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/gradient_sync.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/sample_reader.h"
#include "motley/train/loop/step_runner.h"
#include "motley/train/step/batch_computation.h"

namespace motley::train {

class WorkQueueRunner final : public StepRunner {
 public:
  // All that is referred to must outlive this object.
  WorkQueueRunner(const RankContext& context, const BatchPlan& plan, SampleReader& reader,
                  BatchComputation& computation, GradientSync& sync)
      : context_(context), plan_(plan), reader_(reader), computation_(computation), sync_(sync) {}

  Status run(const Step& step, Report& report) override;

 private:
  const RankContext& context_;
  const BatchPlan& plan_;
  SampleReader& reader_;
  BatchComputation& computation_;
  GradientSync& sync_;
  std::int64_t claimed_ = 0;  // value of the shared counter at which the next step's shards begin
};

}  // namespace motley::train
