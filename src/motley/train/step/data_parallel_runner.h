// Data parallelism: each rank computes the samples of the step that the split gives it, through the whole network.
#pragma once

#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/gradient_sync.h"
#include "motley/train/loop/sample_reader.h"
#include "motley/train/loop/step_runner.h"
#include "motley/train/step/batch_computation.h"

namespace motley::train {

class DataParallelRunner final : public StepRunner {
 public:
  // All that is referred to must outlive this object.
  DataParallelRunner(int rank, const BatchPlan& plan, SampleReader& reader, BatchComputation& computation,
                     GradientSync& sync)
      : rank_(rank), plan_(plan), reader_(reader), computation_(computation), sync_(sync) {}

  Status run(const Step& step, Report& report) override;

 private:
  const int rank_;
  const BatchPlan& plan_;
  SampleReader& reader_;
  BatchComputation& computation_;
  GradientSync& sync_;
};

}  // namespace motley::train
