#include "motley/schedule/sharing.h"

namespace motley::schedule {

std::vector<Change> share(const State& state, const std::vector<int>& jobs, const std::vector<int>& workers,
                          Packing packing) {
  Room room(*state.machines, packing);
  std::vector<Change> changes;
  std::vector<std::size_t> movers;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Placement& now = state.placement(jobs[i]);
    if (workers_of(now) == workers[i]) {
      room.take(state.job(jobs[i]), now);
    } else {
      movers.push_back(i);
    }
  }
  for (const std::size_t i : movers) {
    const Job& job = state.job(jobs[i]);
    Placement placement;
    for (int count = workers[i]; placement.empty() && count >= job.least(); --count) {
      placement = room.place(job, count);
    }
    room.take(job, placement);
    if (placement != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(placement)});
  }
  return changes;
}

}  // namespace motley::schedule
