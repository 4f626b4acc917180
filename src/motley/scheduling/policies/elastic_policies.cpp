// Elastic policies that decide, in every slot or at every event, how many workers each job has, and then where.
#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"

namespace motley::scheduling {
namespace {

constexpr double kMaxSlots = 4096;  // that are planned ahead

// How many workers each of these jobs gets.
using Shares = std::vector<int> (*)(const State& state, std::span<const int> jobs);

// Whether a job could run, had it all machines to itself: one that cannot is not to be given what others can use.
bool can_run(const State& state, int number) {
  return max_devices(*state.topology, state.job(number)) >= state.job(number).min_workers();
}

class SharingPolicy final : public SlotPolicy {
 public:
  SharingPolicy(std::string name, const PolicyOptions& options, Shares shares)
      : SlotPolicy(std::move(name), options), shares_(shares) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override {
    return share(state, state.active, shares_(state, state.active), options_.placement);
  }

  const Shares shares_;
};

// Dominant resource fairness (Ghodsi et al., NSDI 2011, algorithm 1): workers are dealt out one by one, each to the job
// whose dominant share, the largest of its shares of devices and of each resource of the cluster, is least, until
// nobody can use more or what is left is too little for another worker of anybody. The first that a job has are as many
// as it can run with.
std::vector<int> drf_shares(const State& state, std::span<const int> jobs) {
  const ClusterTopology& topology = *state.topology;
  std::vector<double> totals;
  for (int i = 0; i < static_cast<int>(topology.resources.size()); ++i) totals.push_back(topology.total(i));
  std::vector<double> left = totals;
  int devices_left = topology.devices();

  std::vector<int> workers(jobs.size());
  using Share = std::pair<double, std::size_t>;  // the dominant one, place among jobs
  std::priority_queue<Share, std::vector<Share>, std::greater<>> least;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (can_run(state, jobs[i])) least.emplace(0, i);
  }
  while (devices_left > 0 && !least.empty()) {
    const std::size_t i = least.top().second;
    least.pop();
    const Job& job = state.job(jobs[i]);
    const int more = workers[i] == 0 ? job.min_workers() : 1;
    if (more > devices_left || limit_workers(more, job.requests, left) < more) continue;
    workers[i] += more;
    devices_left -= more;
    double share = static_cast<double>(workers[i]) / topology.devices();
    for (std::size_t r = 0; r < job.requests.size(); ++r) {
      left[r] -= more * job.requests[r];
      if (job.requests[r] > 0) share = std::max(share, workers[i] * job.requests[r] / totals[r]);
    }
    if (workers[i] < job.max_workers()) least.emplace(share, i);
  }
  return workers;
}

// Optimus (Peng et al., EuroSys 2018), for jobs whose time to go is known: everybody who is there is given the fewest
// workers that it can run with, by arrival; then each further worker goes to the job whose time to go it shortens most,
// per worker.
std::vector<int> optimus_shares(const State& state, std::span<const int> jobs) {
  const int largest = state.topology->largest_node();
  // Seconds, as fast as the job is on as few nodes as can be.
  const auto to_go = [&](int number, int workers) {
    return state.left_seconds(number) /
           speed(state.job(number), state.topology->network, on_fewest_nodes(workers, largest));
  };
  std::vector<int> workers(jobs.size());
  int left = state.topology->devices();
  using Gain = std::pair<double, std::size_t>;  // seconds sooner for another worker, place among jobs
  std::priority_queue<Gain> gains;
  const auto offer = [&](std::size_t i) {
    if (workers[i] == state.job(jobs[i]).max_workers()) return;
    gains.emplace(to_go(jobs[i], workers[i]) - to_go(jobs[i], workers[i] + 1), i);
  };
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const int least = state.job(jobs[i]).min_workers();
    if (least > left || !can_run(state, jobs[i])) continue;
    workers[i] = least;
    left -= least;
    offer(i);
  }
  while (left > 0 && !gains.empty()) {
    const auto [seconds, i] = gains.top();
    gains.pop();
    if (seconds <= 0) break;
    ++workers[i];
    --left;
    offer(i);
  }
  return workers;
}

// Work done in a second by so many workers on as few nodes as can be, in seconds of the job's duration.
double speed_on_fewest_nodes(const State& state, int number, int workers, int largest) {
  return speed(state.job(number), state.topology->network, on_fewest_nodes(workers, largest));
}

// The fewest workers with which a job is fastest.
int count_usable(const State& state, int number, int largest) {
  const Job& job = state.job(number);
  const int most = std::min(job.max_workers(), state.topology->devices());
  int usable = job.min_workers();
  double fastest = 0;
  for (int workers = job.min_workers(); workers <= most; ++workers) {
    const double now = speed_on_fewest_nodes(state, number, workers, largest);
    if (now <= fastest) continue;
    fastest = now;
    usable = workers;
  }
  return usable;
}

// Shortest remaining service first, where jobs are elastic: in the order of the device-seconds that they have to go
// with the workers that they ask for, each has as many workers as it can use, as far as there are devices.
std::vector<int> shortest_service_shares(const State& state, std::span<const int> jobs) {
  const int largest = state.topology->largest_node();
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (can_run(state, jobs[i])) order.emplace_back(state.left_seconds(jobs[i]) * state.job(jobs[i]).workers, i);
  }
  std::ranges::sort(order);
  std::vector<int> workers(jobs.size());
  int left = state.topology->devices();
  for (const auto& [service, i] : order) {
    if (left == 0) break;
    if (left < state.job(jobs[i]).min_workers()) continue;
    workers[i] = std::min(left, count_usable(state, jobs[i], largest));
    left -= workers[i];
  }
  return workers;
}

// AFS-L (Hwang et al., NSDI 2021), for jobs whose lengths are known: devices are dealt out one by one. Of two jobs let
// a be the one that would be done first with what it has, p the speeds now and p' those with another worker. Then both
// together are done sooner if a has the worker until it is done, and b after it, wherever
//
//     (p_b' - p_b) / p_b'  <  (p_a' - p_a) / p_a,
//
// and else if b has it. The job that no other beats in this way gets the worker. Of two that have none, the shorter is
// first.
class Afs {
 public:
  Afs(const State& state, std::span<const int> jobs) : state_(state), largest_(state.topology->largest_node()) {
    for (const int number : jobs) {
      Claim claim{.job = number, .left = state.left_seconds(number)};
      set_workers(claim, 0);
      claims_.push_back(claim);
    }
  }

  std::vector<int> deal() {
    int left = state_.topology->devices();
    std::vector<std::size_t> takers;
    for (std::size_t i = 0; i < claims_.size(); ++i) {
      if (can_run(state_, claims_[i].job)) takers.push_back(i);
    }
    while (left > 0) {
      std::erase_if(takers,
                    [&](std::size_t i) { return claims_[i].step > left || claims_[i].faster <= claims_[i].speed; });
      if (takers.empty()) break;
      Claim* best = &claims_[takers.front()];
      for (const std::size_t i : takers) {
        if (is_before(claims_[i], *best)) best = &claims_[i];
      }
      left -= best->step;
      set_workers(*best, best->workers + best->step);
    }
    std::vector<int> workers;
    for (const Claim& claim : claims_) workers.push_back(claim.workers);
    return workers;
  }

 private:
  struct Claim {
    int job = 0;
    double left = 0;  // seconds of its duration
    int workers = 0;
    int step = 1;       // how many come next
    double speed = 0;   // now
    double faster = 0;  // with those as well
  };

  void set_workers(Claim& claim, int workers) {
    const Job& job = state_.job(claim.job);
    claim.workers = workers;
    claim.step = workers == 0 ? job.min_workers() : 1;
    claim.speed = workers == 0 ? 0 : claim.faster;
    const int next = workers + claim.step;
    claim.faster = next > job.max_workers() ? 0 : speed_on_fewest_nodes(state_, claim.job, next, largest_);
  }

  static bool is_before(const Claim& one, const Claim& other) {
    if (one.workers == 0 && other.workers == 0) return one.left / one.faster < other.left / other.faster;
    const bool is_first = one.left * other.speed < other.left * one.speed;
    const Claim& a = is_first ? one : other;
    const Claim& b = is_first ? other : one;
    const bool is_for_a = (b.faster - b.speed) * a.speed < (a.faster - a.speed) * b.faster;
    return is_for_a == is_first;
  }

  const State& state_;
  const int largest_;
  std::vector<Claim> claims_;
};

// ElasticFlow (Gu et al., ASPLOS 2023). A job with a deadline is admitted if it and all that were admitted before can
// still be done in time; its minimum satisfactory share is the least level of workers with which, slot by slot and of
// what those with earlier deadlines leave, it is done by its deadline. Numbers of workers are powers of two, so that
// nodes are filled without gaps. What is left over goes, doubling by doubling, where a device does most: to admitted
// jobs, to those without a deadline, and to those whose deadline cannot be met any more and that run nevertheless.
class ElasticFlow final : public SlotPolicy {
 public:
  explicit ElasticFlow(const PolicyOptions& options) : SlotPolicy("elasticflow", options) {}

 private:
  Status take_in(const State& state) override {
    for (const int job : state.finished) admitted_.erase(job);
    arrived_.insert(arrived_.end(), state.arrived.begin(), state.arrived.end());
    return {};
  }

  Result<std::vector<Change>> begin_slot(const State& state) override {
    largest_ = state.topology->largest_node();
    return share(state, state.active, workers_for(state), options_.placement);
  }

  // The devices that each slot from now on has left.
  using FreeDevices = std::vector<int>;

  struct Plan {
    FreeDevices free;
    std::vector<int> workers = {};  // of active jobs, in the coming slot
    std::vector<int> late = {};     // jobs that cannot be done in time, and have none
  };

  std::vector<int> workers_for(const State& state) {
    Plan best = plan(state, admitted_);
    // They were admitted and have fallen behind since, as others slow them down.
    for (const int number : best.late) admitted_.erase(number);
    for (const int number : arrived_) {
      if (std::isinf(state.job(number).deadline) || !can_run(state, number)) continue;
      std::unordered_set<int> with = admitted_;
      with.insert(number);
      Plan planned = plan(state, with);
      if (!planned.late.empty()) continue;
      admitted_ = std::move(with);
      best = std::move(planned);
    }
    arrived_.clear();
    give_rest(state, best.free.front(), best.workers);
    return std::move(best.workers);
  }

  // For these jobs, but those that cannot run at present, as nodes are away: they may still be in time.
  Plan plan(const State& state, const std::unordered_set<int>& jobs) const {
    std::vector<std::pair<double, std::size_t>> order;  // deadline, place among active jobs
    double last = state.now + options_.slot_seconds;
    for (std::size_t i = 0; i < state.active.size(); ++i) {
      const int number = state.active[i];
      if (!jobs.contains(number) || !can_run(state, number)) continue;
      order.emplace_back(state.job(number).arrival + state.job(number).deadline, i);
      last = std::max(last, order.back().first);
    }
    std::ranges::sort(order);
    const double count = std::clamp(std::ceil((last - state.now) / options_.slot_seconds), 1.0, kMaxSlots);
    Plan planned{FreeDevices(static_cast<std::size_t>(count), state.topology->devices())};
    planned.workers.resize(state.active.size());
    for (const auto& [deadline, i] : order) {
      const int number = state.active[i];
      if (!fill(state, number, deadline, planned.free, planned.workers[i])) planned.late.push_back(number);
    }
    return planned;
  }

  // Takes the minimum satisfactory share of a job out of what is free.
  bool fill(const State& state, int number, double deadline, FreeDevices& free, int& now) const {
    const auto slots = static_cast<std::size_t>(
        std::clamp(std::floor((deadline - state.now) / options_.slot_seconds), 0.0, static_cast<double>(free.size())));
    const std::vector<int> all = levels(state, number);
    for (const int level : all) {
      double left = state.left_seconds(number);
      std::vector<int> taken;
      for (std::size_t slot = 0; slot < slots && left > 0; ++slot) {
        const auto larger = std::ranges::upper_bound(all, std::min(level, free[slot]));
        const int workers = larger == all.begin() ? 0 : *(larger - 1);
        taken.push_back(workers);
        if (workers > 0) left -= options_.slot_seconds * speed_with(state, number, workers);
      }
      if (left > 0) continue;
      for (std::size_t slot = 0; slot < taken.size(); ++slot) free[slot] -= taken[slot];
      now = taken.empty() ? 0 : taken.front();
      return true;
    }
    return false;
  }

  void give_rest(const State& state, int left, std::vector<int>& workers) const {
    // Device-seconds of work in a second, for each device; minus the place, so that ties are by arrival; workers.
    using Gain = std::tuple<double, std::ptrdiff_t, int>;
    std::priority_queue<Gain> gains;
    const auto offer = [&](std::size_t i) {
      const int number = state.active[i];
      const std::vector<int> all = levels(state, number);
      const auto next = std::ranges::upper_bound(all, workers[i]);
      if (next == all.end()) return;
      const double before = workers[i] == 0 ? 0 : speed_with(state, number, workers[i]);
      const double rate =
          state.job(number).workers * (speed_with(state, number, *next) - before) / (*next - workers[i]);
      if (rate > 0) gains.emplace(rate, -static_cast<std::ptrdiff_t>(i), *next);
    };
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (can_run(state, state.active[i])) offer(i);
    }
    while (left > 0 && !gains.empty()) {
      const auto [rate, minus_place, to] = gains.top();
      gains.pop();
      const auto place = static_cast<std::size_t>(-minus_place);
      const int more = to - workers[place];
      if (more > left) continue;
      workers[place] = to;
      left -= more;
      offer(place);
    }
  }

  // Powers of two that the job can run with, and its least.
  static std::vector<int> levels(const State& state, int number) {
    const Job& job = state.job(number);
    const int most = std::min(job.max_workers(), state.topology->devices());
    std::vector<int> levels = {job.min_workers()};
    for (int level = 1; level <= most; level *= 2) {
      if (level > job.min_workers()) levels.push_back(level);
    }
    return levels;
  }

  double speed_with(const State& state, int number, int workers) const {
    return speed(state.job(number), state.topology->network, on_fewest_nodes(workers, largest_));
  }

  std::vector<int> arrived_;  // since the slot before
  std::unordered_set<int> admitted_;
  int largest_ = 0;  // devices of the largest node
};

}  // namespace

std::unique_ptr<Policy> make_drf(const PolicyOptions& options) {
  return std::make_unique<SharingPolicy>("drf", options, drf_shares);
}

std::unique_ptr<Policy> make_optimus(const PolicyOptions& options) {
  return std::make_unique<SharingPolicy>("optimus", options, optimus_shares);
}

std::unique_ptr<Policy> make_elastic_srsf(const PolicyOptions& options) {
  PolicyOptions at_events = options;
  at_events.at_events = true;
  return std::make_unique<SharingPolicy>("elastic-srsf", at_events, shortest_service_shares);
}

std::unique_ptr<Policy> make_afs(const PolicyOptions& options) {
  PolicyOptions at_events = options;
  at_events.at_events = true;
  return std::make_unique<SharingPolicy>(
      "afs", at_events, [](const State& state, std::span<const int> jobs) { return Afs(state, jobs).deal(); });
}

std::unique_ptr<Policy> make_elasticflow(const PolicyOptions& options) {
  return std::make_unique<ElasticFlow>(options);
}

}  // namespace motley::scheduling
