#include "motley/schedule/ranking.h"

namespace motley::schedule {

void Ranking::begin(const State& state) {
  state_ = &state;
  occupancy_ = Occupancy(*state.machines);
  changes_.clear();
  for (const int job : given_) got_[static_cast<std::size_t>(job)] = 0;
  given_.clear();
  got_.resize(state.jobs.size());
  fits_.assign(static_cast<std::size_t>(occupancy_.free()) + 1, 1);
}

bool Ranking::offer(int job) {
  const int workers = state_->jobs[static_cast<std::size_t>(job)].workers;
  if (workers > occupancy_.free()) return false;
  const Placement& now = state_->progress[static_cast<std::size_t>(job)].placement;
  if (!now.empty() && occupancy_.has_room(now)) {
    occupancy_.take(now);
  } else {
    char& fits = fits_[static_cast<std::size_t>(workers)];
    if (fits == 0) return false;
    Placement placement = place(*state_->machines, occupancy_, workers, packing_);
    if (placement.empty()) {
      fits = 0;
      return false;
    }
    occupancy_.take(placement);
    changes_.push_back({job, std::move(placement)});
  }
  given_.push_back(job);
  got_[static_cast<std::size_t>(job)] = 1;
  return true;
}

void Ranking::end(Decision& decision) {
  for (const int job : state_->running) {
    if (!got(job)) decision.changes.push_back({job, {}});
  }
  for (Change& change : changes_) decision.changes.push_back(std::move(change));
}

}  // namespace motley::schedule
