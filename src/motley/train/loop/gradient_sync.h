// What becomes of a step's gradients: reduced over the ranks, and followed by the weights.
#pragma once

#include <cstdint>
#include <functional>

#include "motley/base/result.h"
#include "motley/train/loop/step.h"

namespace motley::train {

// A step: begin(); the computation, with arm() before the backward of the last micro-batch and flush() after it;
// wait(); and, where all ranks meet after the step, update(). Where the number of samples is known only at the end,
// backward of the sum's gradient unarmed, scale(1 / samples), then arm() and flush().
class GradientSync {
 public:
  virtual ~GradientSync() = default;
  virtual void begin(const Step& step) = 0;

  // From now on each bucket of gradients that backward completes is reduced, with this rank's weight: its samples.
  // `on_bucket` is called before a bucket starts.
  virtual void arm(const Step& step, double weight, std::function<void(int bucket)> on_bucket) = 0;
  // Starts those that have not started; the first error of any.
  virtual Status flush() = 0;
  virtual void scale(double factor) = 0;
  // Starts all buckets at once: of a rank without samples, or one that has computed unarmed.
  Status start(const Step& step, double weight) {
    arm(step, weight, [](int) {});
    return flush();
  }

  // Until all gradients are reduced over all ranks; `seconds` is how long that may take. Where servers take the
  // optimizer's step, the weights are new afterwards. Adds what it measures to the report. Collective.
  virtual Status wait(const Step& step, double seconds, Report& report) = 0;
  // The optimizer's step, of clipped gradients where they are to be; nothing where servers take it. Collective.
  virtual Status update(const Step& step) = 0;

  // Whether ranks may be at different steps.
  virtual bool is_async() const = 0;
  virtual std::uint64_t bytes_sent() const = 0;  // so far
};

}  // namespace motley::train
