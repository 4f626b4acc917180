#include "motley/scheduling/policies/ranking.h"

namespace motley::scheduling {

void Ranking::begin(const State& state) {
  state_ = &state;
  room_.emplace(*state.machines, packing_);
  changes_.clear();
  for (const int job : given_) got_[static_cast<std::size_t>(job)] = 0;
  given_.clear();
  got_.resize(state.jobs.size());
  fits_.assign(static_cast<std::size_t>(room_->free()) + 1, 1);
}

bool Ranking::offer(int number, int type) {
  const Job& job = state_->job(number);
  if (job.workers > room_->free()) return false;
  const Placement& now = state_->placement(number);
  const bool is_there = !now.empty() && is_of(*state_->machines, now, type);
  if (is_there && room_->has_room(job, now)) {
    room_->take(job, now);
  } else {
    char& fits = fits_[static_cast<std::size_t>(job.workers)];
    if (fits == 0 && packing_ != Packing::kRing && state_->machines->type_count() == 1) return false;
    Placement placement = type == kAnyType ? room_->place(job, job.workers) : room_->place(job, job.workers, type);
    if (placement.empty()) {
      fits = 0;
      return false;
    }
    room_->take(job, placement);
    changes_.push_back({number, std::move(placement)});
  }
  given_.push_back(number);
  got_[static_cast<std::size_t>(number)] = 1;
  return true;
}

void Ranking::end(Decision& decision) {
  for (const int job : state_->running) {
    if (!got(job)) decision.changes.push_back({job, {}});
  }
  for (Change& change : changes_) decision.changes.push_back(std::move(change));
}

}  // namespace motley::scheduling
