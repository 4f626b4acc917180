// The jobs that a policy has to do with: those that have arrived and not finished, by arrival.
#pragma once

#include <algorithm>
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

}  // namespace motley::scheduling
