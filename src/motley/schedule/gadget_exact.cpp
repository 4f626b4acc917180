// GADGET's online greedy, with the slot problem solved for what it is.
//
// Time is cut into slots. At the begin of each, every job that is there says what k workers until the end of the slot
// are worth to it, for rings within a server, within a rack and over racks: what its utility, or the least concave
// function above it, gains by the progress that equation (1) promises. solve_slot then packs one configuration a job.
// Moving or resizing a job costs what it would have gained while it restarts. In a sequence of such greedy choices the
// sum of concave utilities is at least alpha / (alpha + 1) of the best that could have been done with all arrivals
// known, where alpha is the share that each slot's packing has of its bound (GADGET, theorem 6).
//
// With the completion objective a slot's worth is by how much sooner a job is done, over the square root of what it has
// left: short jobs come first, but not at any price, since devices that a ring wastes are missed by all who wait. (Over
// what it has left, or over nothing, average times on real traces are longer.) With the makespan objective it is the
// work done, in seconds of one device, more so for jobs that have longer to go. With the fairness objective it is by
// how much a job's finish-time ratio (Themis's: how much longer it takes than on an equal part of the cluster) falls,
// those that are high counting most.
//
// Between slots nobody is moved. Whoever waits then may have what is free, best paid for first.
#include <cmath>

#include "motley/schedule/active_jobs.h"
#include "motley/schedule/policies.h"
#include "motley/schedule/slot.h"
#include "motley/schedule/speed.h"

namespace motley::schedule {
namespace {

constexpr double kLeastSeconds = 1e-6;  // that a job has to go: one without duration, too, must have its turn

constexpr double kUnfairness = 4;  // the power of finish-time ratios that fairness adds up

constexpr double kSooner = 1e-3;  // of its worth, at most, for being done before a slot ends

class GadgetExact final : public Policy {
 public:
  explicit GadgetExact(const PolicyOptions& options) : options_(options), slots_(options.slot_seconds) {}

  std::string name() const override { return "gadget-exact"; }

  Result<Decision> decide(const State& state) override {
    active_.update(state);
    largest_ = state.machines->largest_server();
    Decision decision;
    if (slots_.begins(state.now)) {
      decision.changes = solve(state, active_.jobs(), *state.machines);
    } else if (state.capacity->devices().free() > 0) {
      std::vector<int> waiting;
      for (const int number : active_.jobs()) {
        if (state.placement(number).empty()) waiting.push_back(number);
      }
      if (!waiting.empty()) decision.changes = solve(state, waiting, state.capacity->rest());
    }
    if (!active_.jobs().empty()) decision.wake = slots_.next();
    return decision;
  }

 private:
  std::vector<Change> solve(const State& state, const std::vector<int>& jobs, const Machines& machines) {
    longest_ = 0;
    for (const int number : jobs) longest_ = std::max(longest_, std::max(kLeastSeconds, state.left_seconds(number)));
    SlotProblem problem{machines, {}};
    problem.jobs.reserve(jobs.size());
    for (const int number : jobs) problem.jobs.push_back(slot_job(state, number));
    SlotAnswer answer = solve_slot(problem);
    std::vector<Change> changes;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (answer.placements[i] != state.placement(jobs[i])) {
        changes.push_back({jobs[i], std::move(answer.placements[i])});
      }
    }
    return changes;
  }

  SlotJob slot_job(const State& state, int number) const {
    const Job& job = state.job(number);
    SlotJob one;
    one.reserve = job.reserve();
    one.now = state.placement(number);
    const double left = std::max(kLeastSeconds, state.left_seconds(number));
    const double restart = job.elastic ? job.elastic->restart_seconds : 0;
    const bool is_stopped = one.now.empty() && state.run_seconds(number) > 0;
    const double until_end =
        std::max(kLeastSeconds, slots_.next() - state.now - (is_stopped ? restart : 0));  // else it would never resume
    for (std::size_t reach = 0; reach < one.value.size(); ++reach) {
      std::vector<double>& values = one.value[reach];
      values.assign(static_cast<std::size_t>(std::min(job.most(), state.machines->devices())) + 1, 0);
      for (std::size_t workers = static_cast<std::size_t>(job.least()); workers < values.size(); ++workers) {
        const RingPlace place{static_cast<int>(workers), reach == 0 ? 1 : servers_of(static_cast<int>(workers))};
        values[workers] = worth(state, job, left, until_end * speed(job, state.machines->network, place));
      }
    }
    if (!one.now.empty() && restart > 0) {
      const auto reach = static_cast<std::size_t>(reach_of(*state.machines, one.now));
      const double value = one.value[reach][static_cast<std::size_t>(workers_of(one.now))];
      one.moving = value * restart / until_end;
    }
    return one;
  }

  // Of so many more seconds of its duration, for a job that has so many to go. What it could do beyond its end is worth
  // little to utilities: enough to be done sooner where nobody else wants the devices.
  double worth(const State& state, const Job& job, double left, double more) const {
    switch (options_.objective) {
      case Objective::kCompletion:
        return job.utility.weight * sooner(state, left, more) / std::sqrt(left);
      case Objective::kMakespan:
        return job.workers * more * (1 + left / longest_);
      case Objective::kFairness:
        return std::pow(finish_ratio(state, job, left, 0), kUnfairness) -
               std::pow(finish_ratio(state, job, left, more), kUnfairness);
      case Objective::kUtility:
        break;
    }
    const double all = job.iterations_after(job.duration);
    const double done = std::max(0.0, job.duration - left);
    const double gain = job.utility.envelope_at(job.iterations_after(done + std::min(left, more)), all) -
                        job.utility.envelope_at(job.iterations_after(done), all);
    return more <= left ? gain : gain * (1 + kSooner * (1 - left / more));
  }

  // Seconds by which a job is done sooner, if it does so many of those that it has left until the slot ends.
  double sooner(const State& state, double left, double more) const {
    const double seconds = slots_.next() - state.now;
    return more < left ? more : seconds + left - seconds * left / more;
  }

  // How much longer the job will have taken than with its part of the cluster, if it does so many seconds of what it
  // has left until the slot ends and goes on as it asked for.
  double finish_ratio(const State& state, const Job& job, double left, double more) const {
    const double to_go = slots_.next() - state.now + left - sooner(state, left, more);
    const double wanted = static_cast<double>(active_.jobs().size()) * job.workers;
    const double part = std::min(1.0, state.machines->devices() / wanted);
    return (state.now - job.arrival + to_go) * part / std::max(kLeastSeconds, job.duration);
  }

  // The fewest servers that a ring that leaves its server may have.
  int servers_of(int workers) const { return std::max(2, (workers + largest_ - 1) / largest_); }

  const PolicyOptions options_;
  ActiveJobs active_;
  Slots slots_;
  int largest_ = 0;     // devices of the largest server
  double longest_ = 0;  // seconds that a job has to go
};

}  // namespace

std::unique_ptr<Policy> make_gadget_exact(const PolicyOptions& options) {
  return std::make_unique<GadgetExact>(options);
}

}  // namespace motley::schedule
