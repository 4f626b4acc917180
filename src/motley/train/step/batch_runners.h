// Steps whose samples go through the whole network: each rank computes those that the split gives it (data
// parallelism), or shards that it claims until none is left (a work queue).
#pragma once

#include <cstdint>
#include <optional>

#include "motley/cluster/emulation.h"
#include "motley/train/loop/emulation.h"
#include "motley/train/step/local_network.h"

namespace motley::train {

// Forward and backward of a rank's samples, a micro-batch at a time.
class BatchComputation {
 public:
  struct Options {
    std::int64_t micro_batches = 1;  // a batch has, where it has samples enough
    std::optional<cluster::Emulation> emulation;
    std::int64_t min_micro_batch = 1;  // samples
  };
  // `buckets`: of gradients, each of which may be ready at another time.
  BatchComputation(const RunnerParts& parts, Options options, int buckets);

  // Adds the gradient of the batch's loss over `divisor` to the parameters', and what was measured to the report.
  // `last` batch of a step: its gradients are reduced, with the weight `divisor`, as soon as they are complete.
  Status run(const Step& step, const data::Batch& batch, double divisor, bool last, Report& report);

  std::uint64_t samples() const { return samples_; }  // that have gone forward so far

 private:
  const RunnerParts parts_;
  const Options options_;
  EmulatedTiming timing_;
  std::uint64_t samples_ = 0;
  std::int64_t step_ = 0;  // the last one
  std::int64_t next_ = 0;  // the number of its next micro-batch
};

// Each rank computes the samples of the step that the split gives it.
class DataParallelRunner final : public StepRunner {
 public:
  // The computation must outlive this object.
  DataParallelRunner(const RunnerParts& parts, BatchComputation& computation)
      : parts_(parts), computation_(computation) {}

  Status run(const Step& step, Report& report) override;
  Status add(const Step& step, std::span<const std::uint32_t> samples, Report& report) override;

 private:
  const RunnerParts parts_;
  BatchComputation& computation_;
};

// Ranks claim shards of the step's window from a counter that all share until none is left, so that whoever is faster
// computes more. The number of a rank's samples is known only then: gradients of sums are added up, and divided at the
// end.
class WorkQueueRunner final : public StepRunner {
 public:
  // The computation must outlive this object.
  WorkQueueRunner(const RunnerParts& parts, BatchComputation& computation) : parts_(parts), computation_(computation) {}

  Status run(const Step& step, Report& report) override;

 private:
  const RunnerParts parts_;
  BatchComputation& computation_;
  std::int64_t claimed_ = 0;  // value of the shared counter at which the next step's shards begin
};

}  // namespace motley::train
