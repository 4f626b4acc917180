// The utility to each job of so many workers until the end of a slot: the slot problem as policies of GADGET's kind
// pose it.
//
// With the utility objective it is what a job's utility, or the least concave function above it, gains by the progress
// that equation (1) promises, less what its devices cost until then.
//
// With the completion objective it is the work done, in seconds of one device, times its price: the weights of all jobs
// that have as much work to go or more. For if jobs went through the cluster one after another, the one with least work
// first, the sum of their completion times would fall by that much for each second of work that a job has less: whoever
// comes after it is done sooner. So short jobs come first, but not at any price, since devices that a ring wastes are
// missed by all who wait; and the fewer wait, the more that order counts. A job that starts with fewer workers than it
// can use is charged the restart with which it will grow, if that will pay. The work of jobs that are about to be those
// that are treated worst, by their finish-time ratios, costs a little more: it takes little from all to keep one from
// waiting much longer than anybody else.
//
// With the makespan objective it is the work done, in seconds of one device, more so for jobs that
// have longer to go. With the fairness objective it is by how much a job's finish-time ratio (Themis's: how much longer
// it takes than on an equal part of the cluster) falls, those that are high counting most.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <unordered_map>

#include "motley/scheduling/policies/slot.h"

namespace motley::scheduling {
namespace {

constexpr double kMinSeconds = 1e-6;   // that a job has to go: one without duration, too, must have its turn
constexpr double kUnfairness = 4;      // the power of finish-time ratios that fairness adds up
constexpr double kAlmostWorst = 0.97;  // of the worst finish-time ratio: above it work costs more with the completion
constexpr double kHelp = 4;            // objective, by this power of how far
constexpr double kSooner = 1e-3;       // of its utility, at most, for being done before a slot ends

class SlotUtility {
 public:
  SlotUtility(const State& state, std::span<const int> jobs, double end, Objective objective)
      : state_(state), end_(end), objective_(objective) {
    for (const int number : jobs) longest_ = std::max(longest_, std::max(kMinSeconds, state_.left_seconds(number)));
    if (objective == Objective::kCompletion) {
      price_work();
      help_worst();
    }
  }

  SlotJob slot_job(int number) const {
    const Job& job = state_.job(number);
    SlotJob one;
    one.reserve = job.reserve();
    one.requests = job.requests;
    one.min_workers = job.min_workers();
    one.now = state_.placement(number);
    const double left = std::max(kMinSeconds, state_.left_seconds(number));
    const double restart = job.elastic ? job.elastic->restart_cost_seconds : 0;
    const bool is_stopped = one.now.empty() && state_.run_seconds(number) > 0;
    const double until_end =
        std::max(kMinSeconds, end_ - state_.now - (is_stopped ? restart : 0));  // else it would never resume
    if (job.type_speeds.empty()) {
      one.value = on_type(number, left, until_end, kAnyType);
    } else {
      for (int type = 0; type < state_.topology->type_count(); ++type) {
        one.type_values.push_back(on_type(number, left, until_end, type));
      }
    }
    if (!one.now.empty()) one.moving = restart_share(restart, until_end, left, state_.progress[index(number)].speed);
    return one;
  }

 private:
  // Prices of a second of work, of all jobs that are there.
  void price_work() {
    std::vector<std::pair<double, int>> by_work;
    for (const int number : state_.active) {
      by_work.emplace_back(state_.left_seconds(number) * state_.job(number).workers, number);
    }
    std::ranges::sort(by_work);  // of equal ones who came first
    double behind = 0;
    for (const auto& [work, number] : by_work | std::views::reverse) {
      behind += state_.job(number).utility.weight;
      prices_[number] = behind;
    }
  }

  // Raises the prices of those that have about the worst finish-time ratio of all, above 1.
  void help_worst() {
    const auto ratio = [this](int number) {  // if it goes on as it asked for
      const Job& job = state_.job(number);
      const double took = state_.now - job.arrival + state_.left_seconds(number);
      return took * part(job) / std::max(kMinSeconds, job.duration);
    };
    std::vector<double> ratios;
    std::ranges::transform(state_.active, std::back_inserter(ratios), ratio);
    if (ratios.empty()) return;
    const double high = std::max(1.0, kAlmostWorst * std::ranges::max(ratios));
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      if (ratios[i] > high) prices_[state_.active[i]] *= std::pow(ratios[i] / high, kHelp);
    }
  }

  // Of what a job does until the slot or the job ends, at this speed: what it loses by a restart.
  static double restart_share(double restart, double until_end, double left, double speed) {
    if (restart <= 0) return 0;
    return std::min(1.0, restart / (speed > 0 ? std::min(until_end, left / speed) : until_end));
  }

  // The highest speed with any number of workers.
  double fastest_on(const Job& job, int type, int largest) const {
    double fastest = 0;
    const int most = std::min(job.max_workers(), state_.topology->devices());
    for (int workers = job.min_workers(); workers <= most; ++workers) {
      RingPlace place = on_fewest_nodes(workers, largest);
      place.type = type;
      fastest = std::max(fastest, speed(job, state_.topology->network, place));
    }
    return fastest;
  }

  // With devices of this type, for a job that has so many seconds to go.
  WorkerUtilities on_type(int number, double left, double until_end, int type) const {
    const Job& job = state_.job(number);
    const int largest = state_.topology->largest_node(type);
    const bool grows_later =
        objective_ == Objective::kCompletion && job.elastic && !state_.progress[index(number)].runs();
    const double fastest = grows_later ? fastest_on(job, type, largest) : 0;
    WorkerUtilities all;
    for (std::size_t locality = 0; locality < all.size(); ++locality) {
      std::vector<double>& values = all[locality];
      values.assign(index(std::min(job.max_workers(), state_.topology->devices())) + 1, 0);
      if (job.speed_on(type) <= 0) continue;
      for (std::size_t workers = index(job.min_workers()); workers < values.size(); ++workers) {
        RingPlace place = on_fewest_nodes(static_cast<int>(workers), largest);
        place.nodes = locality == 0 ? 1 : std::max(2, place.nodes);
        place.type = type;
        const double pace = speed(job, state_.topology->network, place);
        const double more = until_end * pace;
        values[workers] = utility(number, left, more);
        if (grows_later && left / fastest + job.elastic->restart_cost_seconds < left / pace) {
          values[workers] *= 1 - restart_share(job.elastic->restart_cost_seconds, until_end, left, pace);
        }
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
  double utility(int number, double left, double more) const {
    const Job& job = state_.job(number);
    switch (objective_) {
      case Objective::kCompletion:
        return prices_.at(number) * job.workers * more;
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
    return (state_.now - job.arrival + to_go) * part(job) / std::max(kMinSeconds, job.duration);
  }

  // Of the workers that a job asks for, what an equal part of the cluster is.
  double part(const Job& job) const {
    const double wanted = static_cast<double>(state_.active.size()) * job.workers;
    return std::min(1.0, state_.topology->devices() / wanted);
  }

  const State& state_;
  double end_;
  Objective objective_;
  double longest_ = 0;                      // seconds that a job has to go
  std::unordered_map<int, double> prices_;  // of a second of work, with the completion objective
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
