#include "motley/scheduling/policies/policy_parts.h"

#include <algorithm>
#include <cmath>

namespace motley::scheduling {

Status check_alike(const State& state, const std::string& policy, bool knows_resources) {
  if (!state.failed.empty()) {
    return fail(ErrorCode::kInvalidInput, "--policy: '{}' knows no failures; accepted: without, or another policy",
                policy);
  }
  for (const int number : state.arrived) {
    if (!knows_resources && !state.job(number).requests.empty()) {
      return fail(
          ErrorCode::kInvalidInput,
          "--policy: '{}' knows no resources but devices, and job '{}' requests others; accepted: another policy",
          policy, state.job(number).name);
    }
    if (state.job(number).type_speeds.empty()) continue;
    return fail(ErrorCode::kInvalidInput,
                "--policy: '{}' knows one type of devices only, and job '{}' is not as fast on all; accepted: another "
                "policy",
                policy, state.job(number).name);
  }
  return {};
}

Result<Decision> SlotPolicy::decide(const State& state) {
  MOTLEY_TRY(take_in(state));
  const bool begins = options_.at_events || state.now >= slot_end_;
  if (options_.at_events) {
    slot_end_ = state.now + options_.slot_seconds;
  } else if (begins) {
    slot_end_ = (std::floor(state.now / options_.slot_seconds) + 1) * options_.slot_seconds;
    if (slot_end_ <= state.now) slot_end_ += options_.slot_seconds;  // where the quotient was rounded down
  }
  Decision decision;
  if (state.active.empty()) return decision;
  MOTLEY_ASSIGN(decision.changes, begins ? begin_slot(state) : go_on(state));
  decision.wake = slot_end_;
  return decision;
}

void Ranking::begin(const State& state) {
  state_ = &state;
  placer_.emplace(*state.topology, strategy_);
  changes_.clear();
  for (const int job : given_) got_[index(job)] = 0;
  given_.clear();
  got_.resize(state.jobs.size());
  fits_.assign(index(placer_->free()) + 1, 1);
}

bool Ranking::offer(int number, int type) {
  const Job& job = state_->job(number);
  if (job.workers > placer_->free()) return false;
  const Placement& now = state_->placement(number);
  const bool is_there = !now.empty() && is_of_type(*state_->topology, now, type);
  if (is_there && placer_->fits(job, now)) {
    placer_->take(job, now);
  } else {
    char& fits = fits_[index(job.workers)];
    const bool is_device_only = state_->topology->type_count() == 1 && state_->topology->resources.empty();
    if (fits == 0 && strategy_ != PlacementStrategy::kCompact && is_device_only) return false;
    Placement placement = placer_->place(job, job.workers, type);
    if (placement.empty()) {
      fits = 0;
      return false;
    }
    placer_->take(job, placement);
    changes_.push_back({number, std::move(placement)});
  }
  given_.push_back(number);
  got_[index(number)] = 1;
  return true;
}

std::vector<Change> Ranking::end() {
  std::vector<Change> changes;
  for (const int job : state_->running) {
    if (!got(job)) changes.push_back({job, {}});
  }
  std::ranges::move(changes_, std::back_inserter(changes));
  return changes;
}

Result<Decision> RankedPolicy::decide(const State& state) {
  for (const auto& jobs : {state.arrived, state.failed}) {
    for (const int job : jobs) waiting_.emplace(rank_(state, job), job);
  }
  // Where there is room for all, nobody makes way, and what those who run come before does not matter.
  if (waiting_.empty()) return Decision();
  std::vector<int> jobs;
  for (const auto& [rank, job] : waiting_) jobs.push_back(job);
  if (auto changes = start_beside(state, jobs, strategy_)) {
    waiting_.clear();
    return Decision{std::move(*changes)};
  }
  running_.clear();
  for (const int job : state.running) running_.emplace_back(rank_(state, job), job);
  std::ranges::sort(running_);

  Decision decision;
  ranking_.begin(state);
  started_.clear();
  auto running = running_.begin();
  auto waiting = waiting_.begin();
  while (!ranking_.is_full() && (running != running_.end() || waiting != waiting_.end())) {
    const bool runs = running != running_.end() && (waiting == waiting_.end() || *running < *waiting);
    const Ranked& next = runs ? *running++ : *waiting++;
    if (!ranking_.offer(next.second)) continue;
    if (next_step_) decision.wake = std::min(decision.wake, next_step_(state, next.second));
    if (!runs) started_.push_back(next);
  }
  for (const Ranked& job : started_) waiting_.erase(job);
  for (const Ranked& job : running_) {
    if (!ranking_.got(job.second)) waiting_.insert(job);
  }
  decision.changes = ranking_.end();
  return decision;
}

std::optional<std::vector<Change>> start_beside(const State& state, std::span<const int> jobs,
                                                PlacementStrategy strategy) {
  int missing = -state.capacity->devices().free();
  for (const int number : jobs) missing += state.job(number).workers;
  if (missing > 0) return std::nullopt;
  Placer placer(*state.topology, *state.capacity, strategy);
  std::vector<Change> changes;
  for (const int number : jobs) {
    const Job& job = state.job(number);
    Placement placement = placer.place(job, job.workers);
    if (placement.empty()) return std::nullopt;
    placer.take(job, placement);
    changes.push_back({number, std::move(placement)});
  }
  return changes;
}

std::vector<Change> share(const State& state, std::span<const int> jobs, const std::vector<int>& workers,
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
      placement = placer.place(job, count, type_for(i));
    }
    placer.take(job, placement);
    if (placement != state.placement(jobs[i])) changes.push_back({jobs[i], std::move(placement)});
  }
  return changes;
}

}  // namespace motley::scheduling
