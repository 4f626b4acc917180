#include "motley/scheduling/service/take_over.h"

#include <set>

namespace motley::scheduling {

Decision take_over(const State& state, Decision decision, const std::function<double(int job)>& held_until) {
  std::vector<Change> wanted;
  std::set<int> changing;
  for (Change& change : decision.changes) {
    if (const double until = held_until(change.job); state.now < until) {
      decision.wake = std::min(decision.wake, until);
      continue;
    }
    changing.insert(change.job);
    wanted.push_back(std::move(change));
  }
  Capacity capacity(*state.topology);
  for (const int number : state.active) {
    if (!changing.contains(number)) capacity.take(state.placement(number), state.job(number).demand());
  }
  decision.changes.clear();
  for (Change& change : wanted) {
    const Demand demand = state.job(change.job).demand();
    const Placement& now = state.placement(change.job);
    if (!capacity.fits(change.placement, demand)) change.placement = now;
    if (!capacity.fits(change.placement, demand)) change.placement.clear();
    capacity.take(change.placement, demand);
    if (change.placement != now) decision.changes.push_back(std::move(change));
  }
  return decision;
}

}  // namespace motley::scheduling
