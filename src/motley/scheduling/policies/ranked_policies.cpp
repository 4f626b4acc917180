// Policies of jobs with fixed numbers of workers that serve them in an order: by arrival, by what they have had or have
// to go, or by how far behind they are.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"

namespace motley::scheduling {
namespace {

// Those that wait, by arrival.
std::vector<int> list_waiting(const State& state) {
  const std::size_t count = state.active.size() - state.running.size();
  std::vector<int> waiting;
  for (auto job = state.active.rbegin(); waiting.size() < count; ++job) {
    if (state.placement(*job).empty()) waiting.push_back(*job);
  }
  std::ranges::reverse(waiting);
  return waiting;
}

// Jobs start in an order and keep their devices, so that a decision costs what it starts.
class StartInOrder final : public Policy {
 public:
  enum class Order : std::uint8_t {
    kArrival,      // none before one that came earlier
    kWhoeverFits,  // by arrival; who finds no room is passed by
    kFewestWorkers
  };
  StartInOrder(std::string name, const PolicyOptions& options, Order order)
      : name_(std::move(name)), options_(options), order_(order) {}

  std::string name() const override { return name_; }

  Result<Decision> decide(const State& state) override {
    Decision decision;
    if (state.active.size() == state.running.size()) return decision;
    std::vector<int> waiting = list_waiting(state);
    if (order_ == Order::kFewestWorkers) {
      std::ranges::stable_sort(waiting, {}, [&](int job) { return state.job(job).workers; });
    }
    Placer placer(*state.topology, *state.capacity, options_.placement);
    for (const int job : waiting) {
      if (placer.free() == 0) break;
      Placement placement = placer.place(state.job(job), state.job(job).workers);
      if (placement.empty()) {
        if (order_ == Order::kWhoeverFits) continue;
        break;
      }
      placer.take(state.job(job), placement);
      decision.changes.push_back({job, std::move(placement)});
    }
    return decision;
  }

 private:
  const std::string name_;
  const PolicyOptions options_;
  const Order order_;
};

constexpr std::size_t kQueues = 3;
constexpr std::array<double, kQueues - 1> kQueueLimits = {3250, 7200};  // device-seconds, or seconds
constexpr std::size_t kGone = kQueues;
constexpr double kRounding = 1e-6;  // seconds

// Jobs by a time that is never later than what it stands for: looked at when it comes, and put off where it was early.
using EarliestTimes = std::set<std::pair<double, int>>;

// Least attained service: jobs that have had little run before those that have had much, so that short ones need not be
// known to be short. Attained service (device-seconds, or seconds) is discretised into three queues, first in first out
// inside, or two jobs alike would preempt each other for ever.
//
// The details are those of Tiresias's simulator (dlas-gpu and dlas), so that its published figures come out to the
// second. At each event: arrivals join the first queue; jobs that ran, by arrival, move to the end of the next queue
// once their service reaches the limit of theirs; the queues are gone through, and each job that fits into what is free
// runs; in each queue those that wait are put behind those that run. No job moves up again. One oddity of the original
// is kept: it asks to be woken when (limit - seconds run) / devices have passed, where device-seconds would be meant.
//
// Where all who are new find room, and nobody else waits, the queues stay as they are, and nobody who runs is looked
// at.
class Las final : public Policy {
 public:
  enum class Service : std::uint8_t { kDeviceSeconds, kSeconds };
  Las(std::string name, const PolicyOptions& options, Service service)
      : name_(std::move(name)), strategy_(options.placement), service_(service), ranking_(options.placement) {}

  std::string name() const override { return name_; }

  Result<Decision> decide(const State& state) override {
    job_queues_.resize(state.jobs.size());
    for (const int job : state.finished) job_queue(job) = kGone;
    for (const int job : state.arrived) {
      job_queue(job) = 0;
      queues_[0].push_back(job);
      reaching_.emplace(state.now, job);
      waking_.emplace(state.now, job);
    }
    move_down(state);
    if (state.active.size() - state.running.size() <= state.arrived.size()) {
      const std::vector<int> waiting = list_waiting(state);
      if (auto changes = start_beside(state, waiting, strategy_)) {
        return Decision{std::move(*changes), wake(state, [](int) { return true; })};
      }
    }
    ranking_.begin(state);
    for (std::size_t queue = 0; queue < kQueues; ++queue) go_through(queue);
    return Decision{ranking_.end(), wake(state, [&](int job) { return ranking_.got(job); })};
  }

 private:
  std::size_t& job_queue(int job) { return job_queues_[index(job)]; }

  double served(const State& state, int job) const {
    return service_ == Service::kSeconds ? state.run_seconds(job) : state.device_seconds(job);
  }

  // Those whose service has reached their limit.
  void move_down(const State& state) {
    due_.clear();
    while (!reaching_.empty() && reaching_.begin()->first <= state.now + kRounding) {
      due_.push_back(reaching_.extract(reaching_.begin()).value().second);
    }
    std::ranges::sort(due_);
    for (const int job : due_) {
      std::size_t& queue = job_queue(job);
      if (queue >= kQueueLimits.size()) continue;
      if (!state.placement(job).empty() && served(state, job) >= kQueueLimits[queue]) {
        queues_[++queue].push_back(job);
        if (queue == kQueueLimits.size()) continue;
      }
      const int rate = service_ == Service::kSeconds ? 1 : state.job(job).workers;
      reaching_.emplace(state.now + (kQueueLimits[queue] - served(state, job)) / rate, job);
    }
  }

  // Puts those that run first, and drops those that have left the queue. Once all is full, those that follow wait in
  // the order that they have.
  void go_through(std::size_t number) {
    std::vector<int>& queue = queues_[number];
    waiting_.clear();
    std::size_t kept = 0;
    std::size_t i = 0;
    for (; i < queue.size() && !ranking_.is_full(); ++i) {
      const int job = queue[i];
      if (job_queue(job) != number) continue;
      if (ranking_.offer(job)) {
        queue[kept++] = job;
      } else {
        waiting_.push_back(job);
      }
    }
    for (const int job : waiting_) queue[kept++] = job;
    queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(kept), queue.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // The first time at which one of those that run now is to be looked at again. That of a job is never earlier than it
  // was before.
  template <class Runs>
  double wake(const State& state, const Runs& runs) {
    EarliestTimes waiting;
    double wake = std::numeric_limits<double>::infinity();
    while (!waking_.empty()) {
      const auto [time, job] = *waking_.begin();
      const std::size_t queue = job_queue(job);
      if (queue < kQueueLimits.size()) {
        const int rate = service_ == Service::kSeconds ? 1 : state.job(job).workers;
        const double next = state.now + std::ceil((kQueueLimits[queue] - state.run_seconds(job)) / rate);
        if (runs(job) && next <= time) {
          wake = time;
          break;
        }
        (runs(job) ? waking_ : waiting).emplace(next, job);
      }
      waking_.erase({time, job});
    }
    waking_.merge(waiting);
    return wake;
  }

  const std::string name_;
  const PlacementStrategy strategy_;
  const Service service_;
  Ranking ranking_;
  std::array<std::vector<int>, kQueues> queues_;
  std::vector<std::size_t> job_queues_;  // by job
  EarliestTimes reaching_;               // their limits, of those that have one
  EarliestTimes waking_;                 // likewise, as the original reckons
  std::vector<int> waiting_, due_;       // kept for their memory
};

constexpr std::size_t kLevels = 64;  // by the number of jobs, and as many by their work

// The Gittins index in two dimensions (devices and time), as Tiresias (Gu et al., NSDI 2019) uses it where durations of
// single jobs are unknown and their distribution is known: here that of the trace itself. For a job that has had a
// device-seconds, with S what a job takes,
//
//     G(a) = max over d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a]
//
// is the chance of its being done for each device-second spent on it; those with most run. The index is constant
// between levels of attained service, so that two jobs alike do not preempt each other for ever, and inside a level
// jobs run by arrival.
class GittinsIndex {
 public:
  double at(const State& state, int job) {
    if (levels_.empty()) learn(state);
    return indices_[find_level(state.device_seconds(job))];
  }
  // When the job comes to the next level.
  double next_step(const State& state, int number) const {
    const double had = state.device_seconds(number);
    const std::size_t next = find_level(had) + 1;
    if (next == levels_.size()) return std::numeric_limits<double>::infinity();
    return state.now + std::max(1.0, std::ceil((levels_[next] - had) / state.job(number).workers));
  }

 private:
  // The levels are quantiles of what jobs take, each job counted once and each counted by what it takes, so that there
  // are some in the tail, where few jobs have most of the work; the first is 0.
  void learn(const State& state) {
    std::vector<double> sizes;
    for (const Job& job : state.jobs) sizes.push_back(job.device_seconds());
    std::ranges::sort(sizes);
    std::vector<double> sums(sizes.size() + 1);  // of the smallest ones
    std::partial_sum(sizes.begin(), sizes.end(), sums.begin() + 1);
    levels_ = {0};
    for (std::size_t i = 1; i < kLevels; ++i) {
      const double work = sums.back() * static_cast<double>(i) / kLevels;
      levels_.push_back(sizes[i * sizes.size() / kLevels]);
      levels_.push_back(sizes[static_cast<std::size_t>(std::ranges::upper_bound(sums, work) - sums.begin()) - 1]);
    }
    std::ranges::sort(levels_);
    levels_.erase(std::unique(levels_.begin(), levels_.end()), levels_.end());
    for (const double level : levels_) {
      const auto first = static_cast<std::size_t>(std::ranges::upper_bound(sizes, level) - sizes.begin());
      double best = 0;
      for (std::size_t last = first; last < sizes.size(); ++last) {
        const auto done = static_cast<double>(last + 1 - first);
        const auto longer = static_cast<double>(sizes.size() - last - 1);
        const double spent = sums[last + 1] - sums[first] - done * level + longer * (sizes[last] - level);
        if (spent > 0) best = std::max(best, done / spent);
      }
      indices_.push_back(best);
    }
  }

  std::size_t find_level(double device_seconds) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(levels_, device_seconds) - levels_.begin()) - 1;
  }

  std::vector<double> levels_;   // device-seconds
  std::vector<double> indices_;  // of each level
};

// Finish-time fairness as Themis (Mahajan et al., NSDI 2020) aims at: devices are leased for a slot, and go to the jobs
// that are farthest behind what an equal part of the cluster would have given them. Its auctions among those farthest
// behind decide by how well a placement suits; here all devices are alike, and the order itself decides. A job that is
// t seconds old, has s of its d seconds to go, asks for w workers and shares D devices with n - 1 others is
//
//     (t + s) min(1, D / (n w)) / d
//
// times as slow as on its own part, if it runs from now on. Between slots nobody is preempted, nor is who has not
// trained since it started.
class Themis final : public SlotPolicy {
 public:
  explicit Themis(const PolicyOptions& options) : SlotPolicy("themis", options), ranking_(options.placement) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override { return offer_all(state, true); }
  Result<std::vector<Change>> go_on(const State& state) override { return offer_all(state, false); }

  std::vector<Change> offer_all(const State& state, bool is_slot) {
    order_.clear();
    for (const int number : state.active) {
      const Progress& progress = state.progress[index(number)];
      const bool keeps = is_slot ? progress.is_restarting(state.now) : progress.runs();
      order_.emplace_back(keeps ? -std::numeric_limits<double>::infinity() : -slowness(state, number), number);
    }
    std::ranges::sort(order_);
    ranking_.begin(state);
    for (const auto& [rank, number] : order_) {
      if (ranking_.is_full()) break;
      ranking_.offer(number);
    }
    return ranking_.end();
  }

  double slowness(const State& state, int number) const {
    const Job& job = state.job(number);
    const double wanted = static_cast<double>(state.active.size()) * job.workers;
    const double part = std::min(1.0, state.topology->devices() / wanted);
    return (state.now - job.arrival + state.left_seconds(number)) * part / job.duration;
  }

  Ranking ranking_;
  std::vector<std::pair<double, int>> order_;  // kept for its memory
};

}  // namespace

std::unique_ptr<Policy> make_fifo(const PolicyOptions& options) {
  return std::make_unique<StartInOrder>("fifo", options, StartInOrder::Order::kArrival);
}

std::unique_ptr<Policy> make_fifo_backfill(const PolicyOptions& options) {
  return std::make_unique<StartInOrder>("fifo-backfill", options, StartInOrder::Order::kWhoeverFits);
}

std::unique_ptr<Policy> make_smallest_first(const PolicyOptions& options) {
  return std::make_unique<StartInOrder>("smallest-first", options, StartInOrder::Order::kFewestWorkers);
}

std::unique_ptr<Policy> make_las(const PolicyOptions& options) {
  return std::make_unique<Las>("las", options, Las::Service::kDeviceSeconds);
}

std::unique_ptr<Policy> make_las_seconds(const PolicyOptions& options) {
  return std::make_unique<Las>("las-seconds", options, Las::Service::kSeconds);
}

std::unique_ptr<Policy> make_srtf(const PolicyOptions& options) {
  return std::make_unique<RankedPolicy>("srtf", options,
                                        [](const State& state, int job) { return state.left_seconds(job); });
}

std::unique_ptr<Policy> make_srsf(const PolicyOptions& options) {
  return std::make_unique<RankedPolicy>(
      "srsf", options, [](const State& state, int job) { return state.left_seconds(job) * state.job(job).workers; });
}

std::unique_ptr<Policy> make_gittins(const PolicyOptions& options) {
  const auto index = std::make_shared<GittinsIndex>();
  return std::make_unique<RankedPolicy>(
      "gittins", options, [index](const State& state, int job) { return -index->at(state, job); },
      [index](const State& state, int job) { return index->next_step(state, job); });
}

std::unique_ptr<Policy> make_themis(const PolicyOptions& options) {
  return std::make_unique<Themis>(options);
}

}  // namespace motley::scheduling
