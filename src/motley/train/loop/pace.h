// Emulation of a slower device: after its real computation a worker sleeps until the time that the device would have
// needed, spread over forward and backward in proportion, so that overlap behaves as on the real device.
#pragma once

#include <vector>

#include "motley/base/clock.h"

namespace motley::train {

// Used by one worker, once a step: begin_step, then after_forward, then at each bucket's readiness during backward
// after_bucket, then after_backward; with several micro-batches the calls between begin_step and end_step repeat.
// Without emulation (target < 0) every call returns at once.
class Pace {
 public:
  // `forward_share`: of the work between begin and after_backward, before any was seen.
  Pace(Clock& clock, int buckets, double forward_share = 1.0 / 3)
      : clock_(clock), forward_share_(forward_share), bucket_position_(static_cast<std::size_t>(buckets), -1.0) {}

  // The share of the work between begin and after_backward that is done when each bucket is ready, where it is known
  // and not to be found out.
  void set_bucket_positions(std::vector<double> positions);

  // `target_seconds`: how long loading, forward and backward of the coming micro-batch take on the emulated device,
  // counted from now; < 0: no emulation.
  void begin(double target_seconds);
  void after_forward();
  void after_bucket(int bucket);
  void after_backward();
  // Where there is nothing but forward: sleeps to the target.
  void finish();

  // Seconds slept since construction.
  double slept_seconds() const { return slept_; }

 private:
  void sleep_to(double share);        // of the target
  double worked_since_begin() const;  // real seconds since begin, without sleep

  Clock& clock_;
  double target_ = -1;
  double begin_ = 0;
  double slept_ = 0;
  double slept_at_begin_ = 0;
  // Where in a micro-batch's real work forward ends and each bucket is ready, as shares of the whole; running means.
  double forward_share_;
  double forward_work_ = 0;
  bool learns_ = true;
  std::vector<double> bucket_position_;
  std::vector<double> bucket_work_;
};

}  // namespace motley::train
