// The jobs that a policy has to do with: those that have arrived and not finished, by arrival.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

class ActiveJobs {
 public:
  // To be told of every state, in its order.
  void update(const State& state) {
    jobs_.insert(jobs_.end(), state.arrived.begin(), state.arrived.end());
    for (const int job : state.finished) jobs_.erase(std::ranges::lower_bound(jobs_, job));
  }
  const std::vector<int>& jobs() const { return jobs_; }

 private:
  std::vector<int> jobs_;
};

// The slots of policies that decide anew at every multiple of some seconds.
class Slots {
 public:
  explicit Slots(double seconds) : seconds_(seconds) {}

  double seconds() const { return seconds_; }
  // Whether a slot has begun since the last call.
  bool begins(double now) {
    if (now < next_) return false;
    next_ = (std::floor(now / seconds_) + 1) * seconds_;
    return true;
  }
  double next() const { return next_; }  // when the next one begins

 private:
  double seconds_;
  double next_ = 0;
};

}  // namespace motley::scheduling
