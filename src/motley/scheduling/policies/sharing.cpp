#include "motley/scheduling/policies/sharing.h"

namespace motley::scheduling {

std::vector<Change> share(const State& state, const std::vector<int>& jobs, const std::vector<int>& workers,
                          Packing packing, const std::vector<int>& types) {
  Room room(*state.machines, packing);
  const auto type_for = [&](std::size_t i) { return types.empty() ? kAnyType : types[i]; };
  std::vector<Change> changes;
  std::vector<std::size_t> movers;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const Placement& now = state.placement(jobs[i]);
    if (workers_of(now) == workers[i] && (now.empty() || is_of(*state.machines, now, type_for(i)))) {
      room.take(state.job(jobs[i]), now);
    } else {
      movers.push_back(i);
    }
  }
  for (const std::size_t i : movers) {
    const Job& job = state.job(jobs[i]);
    Placement placement;
    for (int count = workers[i]; placement.empty() && count >= job.least(); --count) {
      placement = type_for(i) == kAnyType ? room.place(job, count) : room.place(job, count, type_for(i));
    }
    room.take(job, placement);
    if (placement != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(placement)});
  }
  return changes;
}

}  // namespace motley::scheduling
