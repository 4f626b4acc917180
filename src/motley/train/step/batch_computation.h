// Forward and backward of a rank's samples through the whole network, a micro-batch at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "motley/cluster/emulation.h"
#include "motley/data/local/loader.h"
#include "motley/train/loop/emulated_timing.h"
#include "motley/train/loop/gradient_sync.h"
#include "motley/train/loop/rank_context.h"
#include "motley/train/step/batch_tensors.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

class BatchComputation {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  // a batch has, where it has as many samples
    std::optional<cluster::Emulation> emulation;
  };
  // All that is referred to must outlive this object.
  BatchComputation(const RankContext& context, const LocalNetwork& network, BatchTensors& tensors, GradientSync& sync,
                   const data::Dataset& dataset, Options options, int buckets);

  // Adds the gradient of the batch's loss over `divisor` to the parameters', and what was measured to the report.
  // `last` batch of a step: its gradients are reduced, with the weight `divisor`, as soon as they are complete.
  Status run(const Step& step, const data::Batch& batch, double divisor, bool last, Report& report);

 private:
  struct MicroBatch;
  Status run(const Step& step, const MicroBatch& part, Report& report);

  const RankContext& context_;
  const LocalNetwork& network_;
  BatchTensors& tensors_;
  GradientSync& sync_;
  const data::Dataset& dataset_;
  const Options options_;
  EmulatedTiming timing_;
  std::int64_t step_ = 0;  // the last one
  std::int64_t next_ = 0;  // the number of its next micro-batch
};

}  // namespace motley::train
