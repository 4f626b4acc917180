#include "motley/scheduling/policies/sharing.h"

namespace motley::scheduling {

std::vector<Change> share(const State& state, const std::vector<int>& jobs, const std::vector<int>& workers,
                          PlacementStrategy strategy, const std::vector<int>& types) {
  Placer placer(*state.topology, strategy);
  const auto type_for = [&](std::size_t i) { return types.empty() ? kAnyType : types[i]; };
  std::vector<Change> changes;
  std::vector<std::size_t> movers;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Placement& now = state.placement(jobs[i]);
    if (count_workers(now) == workers[i] && (now.empty() || is_of_type(*state.topology, now, type_for(i)))) {
      placer.take(state.job(jobs[i]), now);
    } else {
      movers.push_back(i);
    }
  }
  for (const std::size_t i : movers) {
    const Job& job = state.job(jobs[i]);
    Placement placement;
    for (int count = workers[i]; placement.empty() && count >= job.min_workers(); --count) {
      placement = type_for(i) == kAnyType ? placer.place(job, count) : placer.place(job, count, type_for(i));
    }
    placer.take(job, placement);
    if (placement != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(placement)});
  }
  return changes;
}

}  // namespace motley::scheduling
