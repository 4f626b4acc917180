// A rank's part of a step's computation. There is one for each way of sharing the work: samples split beforehand, a
// queue of shards that ranks claim, and stages of a pipeline.
#pragma once

#include <cstdint>

#include "motley/base/result.h"
#include "motley/train/loop/step.h"

namespace motley::train {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Loads this rank's samples, runs forward and backward, and starts the synchronisation of every bucket of gradients,
  // each as soon as it is complete. Adds what it measures to the report: samples, times, losses.
  virtual Status run(const Step& step, Report& report) = 0;
  // Of activations and their gradients, so far.
  virtual std::uint64_t bytes_sent() const { return 0; }
};

}  // namespace motley::train
