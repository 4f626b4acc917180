// Policies of jobs with fixed numbers of workers that serve them in an order: by arrival, by what they have had or have
// to go, or by how far behind they are.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/policy_parts.h"

namespace motley::scheduling {
namespace {

// Nothing is preempted, so that a decision costs what it starts.
class Fifo final : public Policy {
 public:
  explicit Fifo(const PolicyOptions& options) : options_(options) {}

  std::string name() const override { return "fifo"; }

  Result<Decision> decide(const State& state) override {
    Decision decision;
    if (state.active.size() == state.running.size()) return decision;
    Placer placer(*state.topology, options_.placement);
    for (const int job : state.running) placer.take(state.job(job), state.placement(job));
    for (const int job : state.active) {
      if (!state.placement(job).empty()) continue;
      Placement placement = placer.place(state.job(job), state.job(job).workers);
      if (placement.empty()) break;
      placer.take(state.job(job), placement);
      decision.changes.push_back({job, std::move(placement)});
    }
    return decision;
  }

 private:
  const PolicyOptions options_;
};

constexpr std::size_t kQueues = 3;
constexpr std::array<double, kQueues - 1> kQueueLimits = {3250, 7200};  // device-seconds
constexpr std::size_t kGone = kQueues;

// Least attained service: jobs that have had little run before those that have had much, so that short ones need not be
// known to be short. Attained service (device-seconds) is discretised into three queues, first in first out inside, or
// two jobs alike would preempt each other for ever.
//
// The details are those of Tiresias's simulator (dlas-gpu), so that its published figures come out to the second. At
// each event: arrivals join the first queue; jobs that ran, by arrival, move to the end of the next queue once their
// service reaches the limit of theirs; the queues are gone through, and each job that fits into what is free runs; in
// each queue those that wait are put behind those that run. No job moves up again. One oddity of the original is kept:
// it asks to be woken when (limit - seconds run) / devices have passed, where device-seconds would be meant.
class Las final : public Policy {
 public:
  explicit Las(const PolicyOptions& options) : ranking_(options.placement) {}

  std::string name() const override { return "las"; }

  Result<Decision> decide(const State& state) override {
    job_queues_.resize(state.jobs.size());
    for (const int job : state.finished) job_queue(job) = kGone;
    for (const int job : state.arrived) {
      job_queue(job) = 0;
      queues_[0].push_back(job);
    }
    for (const int job : state.running) {
      std::size_t& queue = job_queue(job);
      if (queue < kQueueLimits.size() && state.device_seconds(job) >= kQueueLimits[queue]) {
        queues_[++queue].push_back(job);
      }
    }
    ranking_.begin(state);
    for (std::size_t queue = 0; queue < kQueues; ++queue) go_through(queue);
    return Decision{ranking_.end(), wake(state)};
  }

 private:
  std::size_t& job_queue(int job) { return job_queues_[index(job)]; }

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

  double wake(const State& state) {
    double wake = std::numeric_limits<double>::infinity();
    for (std::size_t number = 0; number < kQueueLimits.size(); ++number) {
      for (const int job : queues_[number]) {
        if (!ranking_.got(job)) break;  // those that run are first
        const int workers = state.job(job).workers;
        wake = std::min(wake, state.now + std::ceil((kQueueLimits[number] - state.run_seconds(job)) / workers));
      }
    }
    return wake;
  }

  Ranking ranking_;
  std::array<std::vector<int>, kQueues> queues_;
  std::vector<std::size_t> job_queues_;  // by job
  std::vector<int> waiting_;             // kept for its memory
};

constexpr std::size_t kLevels = 64;

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
  // The levels are quantiles of what jobs take; the first is 0.
  void learn(const State& state) {
    std::vector<double> sizes;
    for (const Job& job : state.jobs) sizes.push_back(job.device_seconds());
    std::ranges::sort(sizes);
    std::vector<double> sums(sizes.size() + 1);  // of the smallest ones
    std::partial_sum(sizes.begin(), sizes.end(), sums.begin() + 1);
    levels_ = {0};
    for (std::size_t i = 1; i < kLevels; ++i) {
      const double size = sizes[i * sizes.size() / kLevels];
      if (size > levels_.back()) levels_.push_back(size);
    }
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
// times as slow as on its own part, if it runs from now on. Between slots nobody is preempted.
class Themis final : public SlotPolicy {
 public:
  explicit Themis(const PolicyOptions& options) : SlotPolicy("themis", options), ranking_(options.placement) {}

 private:
  Result<std::vector<Change>> begin_slot(const State& state) override { return offer_all(state, true); }
  Result<std::vector<Change>> go_on(const State& state) override { return offer_all(state, false); }

  std::vector<Change> offer_all(const State& state, bool is_slot) {
    order_.clear();
    for (const int number : state.active) {
      const bool keeps = !is_slot && !state.placement(number).empty();
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
  return std::make_unique<Fifo>(options);
}

std::unique_ptr<Policy> make_las(const PolicyOptions& options) {
  return std::make_unique<Las>(options);
}

std::unique_ptr<Policy> make_srtf(const PolicyOptions& options) {
  return std::make_unique<RankedPolicy>("srtf", options,
                                        [](const State& state, int job) { return state.left_seconds(job); });
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
