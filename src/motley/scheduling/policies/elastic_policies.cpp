// Elastic policies that decide in every slot how many workers each job has, and then where.
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

// Dominant resource fairness (Ghodsi et al., NSDI 2011) where devices are the only resource: workers are dealt out one
// by one, each to the job that has fewest, until nobody can use more or nothing is left. A job that got fewer than it
// can run with gives them back.
std::vector<int> drf_shares(const State& state, std::span<const int> jobs) {
  std::vector<int> workers(jobs.size());
  using Share = std::pair<int, std::size_t>;  // workers, place among jobs
  std::priority_queue<Share, std::vector<Share>, std::greater<>> fewest;
  for (std::size_t i = 0; i < workers.size(); ++i) fewest.emplace(0, i);
  int left = state.topology->devices();
  while (left > 0 && !fewest.empty()) {
    const auto [had, i] = fewest.top();
    fewest.pop();
    const Job& job = state.job(jobs[i]);
    const int more = had == 0 ? job.min_workers() : 1;
    if (more > left) continue;
    workers[i] += more;
    left -= more;
    if (workers[i] < job.max_workers()) fewest.emplace(workers[i], i);
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
    if (least > left) continue;
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

  std::vector<int> workers_for(const State& state) {
    std::vector<int> workers(state.active.size());
    FreeDevices free = plan(state, admitted_, workers);
    for (const int number : arrived_) {
      if (std::isinf(state.job(number).deadline)) continue;
      std::unordered_set<int> with = admitted_;
      with.insert(number);
      std::vector<int> planned(workers.size());
      FreeDevices left = plan(state, with, planned);
      if (left.empty()) continue;
      admitted_ = std::move(with);
      workers = std::move(planned);
      free = std::move(left);
    }
    arrived_.clear();
    give_rest(state, free.empty() ? state.topology->devices() : free.front(), workers);
    return workers;
  }

  // Sets what each of these has in the coming slot; returns what is left, nothing where not all can be done in time.
  // Those that were admitted and have fallen behind since (others slow them down) do not count any more.
  FreeDevices plan(const State& state, const std::unordered_set<int>& jobs, std::vector<int>& workers) {
    std::vector<std::pair<double, std::size_t>> order;  // deadline, place among active jobs
    double last = state.now + options_.slot_seconds;
    for (std::size_t i = 0; i < state.active.size(); ++i) {
      const int number = state.active[i];
      if (!jobs.contains(number)) continue;
      order.emplace_back(state.job(number).arrival + state.job(number).deadline, i);
      last = std::max(last, order.back().first);
    }
    std::ranges::sort(order);
    const double count = std::clamp(std::ceil((last - state.now) / options_.slot_seconds), 1.0, kMaxSlots);
    FreeDevices free(static_cast<std::size_t>(count), state.topology->devices());
    for (const auto& [deadline, i] : order) {
      const int number = state.active[i];
      if (!fill(state, number, deadline, free, workers[i])) {
        if (!admitted_.contains(number)) return {};
        admitted_.erase(number);
      }
    }
    return free;
  }

  // Takes the minimum satisfactory share of a job out of the module.
  bool fill(const State& state, int number, double deadline, FreeDevices& free, int& now) {
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
    for (std::size_t i = 0; i < workers.size(); ++i) offer(i);
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

std::unique_ptr<Policy> make_elasticflow(const PolicyOptions& options) {
  return std::make_unique<ElasticFlow>(options);
}

}  // namespace motley::scheduling
