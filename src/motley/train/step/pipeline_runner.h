// Pipeline parallelism: micro-batches go through this rank's stage; the first stage reads their features, the last one
// their targets.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "motley/train/loop/batch_plan.h"
#include "motley/train/loop/emulated_timing.h"
#include "motley/train/loop/gradient_sync.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/loop/sample_reader.h"
#include "motley/train/loop/step_runner.h"
#include "motley/train/pipeline/emulated_stage_timing.h"
#include "motley/train/pipeline/pipeline.h"
#include "motley/train/step/batch_tensors.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

class PipelineRunner final : public StepRunner {
 public:
  // The slowness of an emulated device: how long the stage takes there, and where in backward each bucket of gradients
  // is complete.
  struct Emulation {
    EmulatedStageTiming stage;
    EmulatedTiming timing;
  };
  // All that is referred to must outlive this object.
  PipelineRunner(const RankContext& context, const StageLayout& layout, const BatchPlan& plan,
                 const LocalNetwork& network, BatchTensors& tensors, SampleReader& reader, GradientSync& sync,
                 Pipeline& pipeline, std::optional<Emulation> emulation)
      : context_(context),
        layout_(layout),
        plan_(plan),
        network_(network),
        tensors_(tensors),
        reader_(reader),
        sync_(sync),
        pipeline_(pipeline),
        emulation_(std::move(emulation)) {}

  Status run(const Step& step, Report& report) override;
  std::uint64_t bytes_sent() const override { return pipeline_.bytes_sent(); }

 private:
  struct Work;
  Pipeline::Hooks make_hooks(Work& work);
  void add_emulation(Pipeline::Hooks& hooks, Work& work);

  const RankContext& context_;
  const StageLayout& layout_;
  const BatchPlan& plan_;
  const LocalNetwork& network_;
  BatchTensors& tensors_;
  SampleReader& reader_;
  GradientSync& sync_;
  Pipeline& pipeline_;
  std::optional<Emulation> emulation_;
};

}  // namespace motley::train
