#include "motley/scheduling/policies/ranked_policy.h"

#include <algorithm>

namespace motley::scheduling {

Result<Decision> RankedPolicy::decide(const State& state) {
  for (const int job : state.arrived) waiting_.emplace(rank(state, job), job);
  for (const int job : state.failed) waiting_.emplace(rank(state, job), job);
  running_.clear();
  for (const int job : state.running) running_.emplace_back(rank(state, job), job);
  std::ranges::sort(running_);

  Decision decision;
  const auto wake_for = [&](int job) { decision.wake = std::min(decision.wake, next_step(state, job)); };
  ranking_.begin(state);
  started_.clear();
  auto running = running_.begin();
  for (auto waiting = waiting_.begin(); !ranking_.is_full();) {
    if (running != running_.end() && (waiting == waiting_.end() || *running < *waiting)) {
      if (ranking_.offer(running->second)) wake_for(running->second);
      ++running;
    } else if (waiting != waiting_.end()) {
      if (ranking_.offer(waiting->second)) {
        wake_for(waiting->second);
        started_.push_back(*waiting);
      }
      ++waiting;
    } else {
      break;
    }
  }
  for (const Ranked& job : started_) waiting_.erase(job);
  for (const Ranked& job : running_) {
    if (!ranking_.got(job.second)) waiting_.insert(job);
  }
  ranking_.end(decision);
  return decision;
}

}  // namespace motley::scheduling
