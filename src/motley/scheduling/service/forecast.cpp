#include "motley/scheduling/service/forecast.h"

#include <cmath>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/service/take_over.h"
#include "motley/scheduling/simulator/simulator.h"

namespace motley::scheduling {
namespace {

constexpr double kSoon = 1e-3;  // seconds: a decision that is due, after what runs has been put where it is

// A policy as the controller asks it: first what runs is where it is, then decisions come when they are due, and of
// each what take_over leaves of it.
class AsAsked final : public Policy {
 public:
  // `next_decision`: on the clock of the simulation, as all times.
  AsAsked(std::unique_ptr<Policy> policy, std::vector<Controller::Standing> standings, double next_decision)
      : policy_(std::move(policy)), standings_(std::move(standings)), next_decision_(next_decision) {}

  std::string name() const override { return policy_->name(); }

  Result<Decision> decide(const State& state) override {
    if (!has_begun_) return begin(state);
    arrived_.insert(arrived_.end(), state.arrived.begin(), state.arrived.end());
    finished_.insert(finished_.end(), state.finished.begin(), state.finished.end());
    State asked = state;
    asked.arrived = arrived_;
    asked.finished = finished_;
    MOTLEY_ASSIGN(Decision decision, policy_->decide(asked));
    arrived_.clear();
    finished_.clear();
    Decision taken = take_over(state, std::move(decision), [&](int job) {
      return state.placement(job).empty() ? -std::numeric_limits<double>::infinity()
                                          : standings_[index(job)].held_until;
    });
    for (const Change& change : taken.changes) {
      Controller::Standing& one = standings_[index(change.job)];
      one.held_until = state.now + one.cooldown;
    }
    return taken;
  }

 private:
  // The policy, made anew, is asked about the jobs that it knows, so that it knows where in its time slots it is, but
  // nothing of what it says is done.
  Result<Decision> begin(const State& state) {
    has_begun_ = true;
    std::vector<int> known;
    for (const int job : state.arrived) (standings_[index(job)].is_new ? arrived_ : known).push_back(job);
    State asked = state;
    asked.arrived = asked.active = known;
    MOTLEY_TRY(policy_->decide(asked));
    Decision there{.wake = std::max(state.now + kSoon, next_decision_)};
    Capacity capacity(*state.topology);
    for (const int job : state.arrived) {
      const Placement& target = standings_[index(job)].target;
      if (target.empty() || !capacity.fits(target, state.job(job).demand())) continue;
      capacity.take(target, state.job(job).demand());
      there.changes.push_back({job, target});
    }
    return there;
  }

  const std::unique_ptr<Policy> policy_;
  std::vector<Controller::Standing> standings_;
  const double next_decision_;
  bool has_begun_ = false;
  std::vector<int> arrived_, finished_;  // of which the policy has not heard
};

}  // namespace

Result<std::vector<Forecast>> forecast(const Controller::Snapshot& present, const ForecastJobs& jobs,
                                       const ClusterTopology& topology, bool has_changed, const Deadline& deadline) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<Forecast> forecasts(jobs.jobs.size(), {kNever, kNever});
  std::vector<Job> placed;
  std::vector<Controller::Standing> standings;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < jobs.jobs.size(); ++i) {
    const Job& job = jobs.jobs[i];
    if (jobs.standings[i].held_until == kNever) {
      forecasts[i] = {0, 0};  // it is cancelled
      continue;
    }
    const int devices = max_devices(topology, job);
    if (job.min_workers() > devices) continue;  // waits until nodes come back
    placed.push_back(job);
    standings.push_back(jobs.standings[i]);
    if (job.workers > devices) {
      // As fast with these as it is, though it then asks for no more.
      const RingPlace place = on_fewest_nodes(devices, topology.largest_node());
      placed.back().workers = devices;
      placed.back().duration *= speed(placed.back(), topology.network, place) / speed(job, topology.network, place);
    }
    places.push_back(i);
  }
  if (placed.empty()) return forecasts;
  MOTLEY_ASSIGN(auto policy, make_policy(present.options.policy, present.options.policy_options));
  // Jobs that are left out are to the policy jobs that have ended, and one that waits for nothing else has then to be
  // asked.
  const bool is_at_once = has_changed || std::isinf(present.next_decision);
  AsAsked asked(std::move(policy), std::move(standings), is_at_once ? present.now : present.next_decision);
  MOTLEY_ASSIGN(const Outcome outcome, simulate(placed, topology, asked, {.deadline = deadline}));
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const double starts = outcome.jobs[i].started - present.now;
    forecasts[places[i]] = {starts > 2 * kSoon ? starts : 0, outcome.jobs[i].finished - present.now};
  }
  return forecasts;
}

}  // namespace motley::scheduling
