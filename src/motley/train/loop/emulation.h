// Emulation of a slower device: after its real computation a worker sleeps until the time that the device would have
// needed, spread over forward and backward in proportion, so that overlap behaves as on the real device. This machine
// may be too busy for the workers to be as slow as their deadlines say: a run that it is much too busy for is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/cluster/emulation.h"
#include "motley/train/loop/step.h"

namespace motley::train {

// Used by one worker, for each micro-batch: begin, then after_forward, then at each bucket's readiness during backward
// after_bucket, then after_backward. Without emulation (target < 0) no call sleeps.
class EmulatedTiming {
 public:
  // `forward_share`: of the work between begin and after_backward, before any was seen.
  EmulatedTiming(Clock& clock, int buckets, double forward_share = 1.0 / 3)
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
  void finish() { sleep_to(1); }

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

// All ranks' deadlines, against what they took.
class EmulationWatch {
 public:
  // `names`: a worker's, by rank. `cores`: that the ranks share. `may_refuse`: false where the emulated host works as
  // hard as this one, as where all work is to send.
  EmulationWatch(std::vector<std::string> names, int cores, bool may_refuse);

  // All ranks' reports of a step. kUnavailable where the emulation lies: every rank finds the same.
  Status check(const Step& step, std::span<const Report> reports);

  // What is to be known of a rank whose steps were late too often; empty of others.
  std::vector<std::string> notes() const;

 private:
  struct Lateness {
    std::int64_t steps = 0;  // emulated ones
    std::int64_t late = 0;
    double excess = 0;  // of the late ones over their deadlines, summed shares
  };

  std::vector<std::string> names_;
  int cores_;
  bool may_refuse_;
  std::vector<Lateness> lateness_;  // by rank
  std::vector<bool> was_there_;     // by rank: in the last step
  // Of the steps since the last check.
  std::vector<cluster::WorkerLoad> loads_;
  std::int64_t steps_ = 0;
  double seconds_ = 0;
};

}  // namespace motley::train
