// The utility to each job of so many workers until the end of a slot: the slot problem as policies of GADGET's kind
// pose it.
//
// With the utility objective it is what a job's utility, or the least concave function above it, gains by the progress
// that equation (1) promises, less what its devices cost until then. With the completion objective it is by how much
// sooner a job is done, over the square root of what it has left: short jobs come first, but not at any price, since
// devices that a ring wastes are missed by all who wait. (Over what it has left, or over nothing, average times on real
// traces are longer.) With the makespan objective it is the work done, in seconds of one device, more so for jobs that
// have longer to go. With the fairness objective it is by how much a job's finish-time ratio (Themis's: how much longer
// it takes than on an equal part of the cluster) falls, those that are high counting most.
#include <algorithm>
#include <cmath>

#include "motley/scheduling/policies/slot.h"

namespace motley::scheduling {
namespace {

constexpr double kMinSeconds = 1e-6;  // that a job has to go: one without duration, too, must have its turn
constexpr double kUnfairness = 4;     // the power of finish-time ratios that fairness adds up
constexpr double kSooner = 1e-3;      // of its utility, at most, for being done before a slot ends

class SlotUtility {
 public:
  SlotUtility(const State& state, std::span<const int> jobs, double end, Objective objective)
      : state_(state), end_(end), objective_(objective) {
    for (const int number : jobs) longest_ = std::max(longest_, std::max(kMinSeconds, state_.left_seconds(number)));
  }

  SlotJob slot_job(int number) const {
    const Job& job = state_.job(number);
    SlotJob one;
    one.reserve = job.reserve();
    one.min_workers = job.min_workers();
    one.now = state_.placement(number);
    const double left = std::max(kMinSeconds, state_.left_seconds(number));
    const double restart = job.elastic ? job.elastic->restart_cost_seconds : 0;
    const bool is_stopped = one.now.empty() && state_.run_seconds(number) > 0;
    const double until_end =
        std::max(kMinSeconds, end_ - state_.now - (is_stopped ? restart : 0));  // else it would never resume
    if (job.type_speeds.empty()) {
      one.value = on_type(job, left, until_end, kAnyType);
    } else {
      for (int type = 0; type < state_.topology->type_count(); ++type) {
        one.type_values.push_back(on_type(job, left, until_end, type));
      }
    }
    const int type = find_type(*state_.topology, one.now);
    if (!one.now.empty() && restart > 0 && (job.type_speeds.empty() || type != kAnyType)) {
      const auto locality = static_cast<std::size_t>(find_locality(*state_.topology, one.now));
      const WorkerUtilities& there = one.value_on(type);
      one.moving = there[locality][index(count_workers(one.now))] * restart / until_end;
    }
    return one;
  }

 private:
  // With devices of this type, for a job that has so many seconds to go.
  WorkerUtilities on_type(const Job& job, double left, double until_end, int type) const {
    const int largest = state_.topology->largest_node(type);
    WorkerUtilities all;
    for (std::size_t locality = 0; locality < all.size(); ++locality) {
      std::vector<double>& values = all[locality];
      values.assign(index(std::min(job.max_workers(), state_.topology->devices())) + 1, 0);
      if (job.speed_on(type) <= 0) continue;
      for (std::size_t workers = index(job.min_workers()); workers < values.size(); ++workers) {
        RingPlace place = on_fewest_nodes(static_cast<int>(workers), largest);
        place.nodes = locality == 0 ? 1 : std::max(2, place.nodes);
        place.type = type;
        const double more = until_end * speed(job, state_.topology->network, place);
        values[workers] = utility(job, left, more);
        if (objective_ == Objective::kUtility) {
          const double seconds = until_end * std::min(1.0, left / std::max(kMinSeconds, more));
          values[workers] -= job.compute_cost(seconds * static_cast<double>(workers));
        }
      }
    }
    return all;
  }

  // Of so many more seconds of its duration, for a job that has so many to go. What it could do beyond its end adds
  // little utility: enough to be done sooner where nobody else wants the devices.
  double utility(const Job& job, double left, double more) const {
    switch (objective_) {
      case Objective::kCompletion:
        return job.utility.weight * sooner(left, more) / std::sqrt(left);
      case Objective::kMakespan:
        return job.workers * more * (1 + left / longest_);
      case Objective::kFairness:
        return std::pow(finish_ratio(job, left, 0), kUnfairness) - std::pow(finish_ratio(job, left, more), kUnfairness);
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
  double sooner(double left, double more) const {
    const double seconds = end_ - state_.now;
    return more < left ? more : seconds + left - seconds * left / more;
  }

  // How much longer the job will have taken than with its part of the cluster, if it does so many seconds of what it
  // has left until the slot ends and goes on as it asked for.
  double finish_ratio(const Job& job, double left, double more) const {
    const double to_go = end_ - state_.now + left - sooner(left, more);
    const double wanted = static_cast<double>(state_.active.size()) * job.workers;
    const double part = std::min(1.0, state_.topology->devices() / wanted);
    return (state_.now - job.arrival + to_go) * part / std::max(kMinSeconds, job.duration);
  }

  const State& state_;
  double end_;
  Objective objective_;
  double longest_ = 0;  // seconds that a job has to go
};

}  // namespace

SlotProblem slot_problem(const State& state, std::span<const int> jobs, const ClusterTopology& topology, double end,
                         Objective objective) {
  const SlotUtility utility(state, jobs, end, objective);
  SlotProblem problem{topology, {}};
  problem.jobs.reserve(jobs.size());
  for (const int number : jobs) problem.jobs.push_back(utility.slot_job(number));
  return problem;
}

}  // namespace motley::scheduling
