// Pipeline parallelism: micro-batches go through this rank's stage; the first stage reads their features, the last one
// their targets. Where the step is broken off, as a rank is lost, what was added to the gradients so far stays.
#pragma once

#include <optional>

#include "motley/train/loop/emulation.h"
#include "motley/train/pipeline/emulated_stage_timing.h"
#include "motley/train/pipeline/pipeline.h"
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
  PipelineRunner(const RunnerParts& parts, const StageLayout& layout, Pipeline& pipeline,
                 std::optional<Emulation> emulation)
      : parts_(parts), layout_(layout), pipeline_(pipeline), emulation_(std::move(emulation)) {}

  Status run(const Step& step, Report& report) override;
  std::uint64_t bytes_sent() const override { return pipeline_.bytes_sent(); }
  Kept keep() override;
  std::optional<std::vector<data::Range>> kept_rows(std::int64_t step) const override {
    if (!keeps()) return std::nullopt;
    return kept_.step == step ? kept_.rows : std::vector<data::Range>();
  }
  void go_on_from(Kept&& kept) override { kept_ = std::move(kept); }

 private:
  struct Work;
  bool keeps() const { return parts_.sync.keeps_gradients() && parts_.tensors.table() == nullptr; }
  void begin(Work& work);
  Status read(Work& work);
  Pipeline::Hooks make_hooks(Work& work);
  void add_emulation(Pipeline::Hooks& hooks, Work& work);

  const RunnerParts parts_;
  const StageLayout& layout_;
  Pipeline& pipeline_;
  std::optional<Emulation> emulation_;
  Kept kept_;  // of the last step that was begun; its gradients are with `sync` once it is
};

}  // namespace motley::train
