// Least attained service: jobs that have had little run before those that have had much, so that short ones need not be
// known to be short. Attained service (device-seconds) is discretised into three queues, first in first out inside, or
// two jobs alike would preempt each other for ever.
//
// The details are those of Tiresias's simulator (dlas-gpu), so that its published figures come out to the second. At
// each event: arrivals join the first queue; jobs that ran, by arrival, move to the end of the next queue once their
// service reaches the limit of theirs; the queues are gone through, and each job that fits into what is free runs; in
// each queue those that wait are put behind those that run. No job moves up again. One oddity of the original is kept:
// it asks to be woken when (limit - seconds run) / devices have passed, where device-seconds would be meant.
#include <array>
#include <cmath>
#include <vector>

#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/policies/ranking.h"

namespace motley::scheduling {
namespace {

constexpr std::size_t kQueues = 3;
constexpr std::array<double, kQueues - 1> kLimits = {3250, 7200};  // device-seconds
constexpr std::size_t kGone = kQueues;

class Las final : public Policy {
 public:
  explicit Las(const PolicyOptions& options) : ranking_(options.packing) {}

  std::string name() const override { return "las"; }

  Result<Decision> decide(const State& state) override {
    queue_of_.resize(state.jobs.size());
    for (const int job : state.finished) queue_of(job) = kGone;
    for (const int job : state.arrived) {
      queue_of(job) = 0;
      queues_[0].push_back(job);
    }
    for (const int job : state.running) {
      std::size_t& queue = queue_of(job);
      if (queue < kLimits.size() && state.device_seconds(job) >= kLimits[queue]) {
        queues_[++queue].push_back(job);
      }
    }
    ranking_.begin(state);
    for (std::size_t queue = 0; queue < kQueues; ++queue) go_through(queue);
    Decision decision;
    ranking_.end(decision);
    decision.wake = wake(state);
    return decision;
  }

 private:
  std::size_t& queue_of(int job) { return queue_of_[static_cast<std::size_t>(job)]; }

  // Puts those that run first, and drops those that have left the queue. Once all is full, those that follow wait in
  // the order that they have.
  void go_through(std::size_t number) {
    std::vector<int>& queue = queues_[number];
    waiting_.clear();
    std::size_t kept = 0;
    std::size_t i = 0;
    for (; i < queue.size() && !ranking_.is_full(); ++i) {
      const int job = queue[i];
      if (queue_of(job) != number) continue;
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
    for (std::size_t number = 0; number < kLimits.size(); ++number) {
      for (const int job : queues_[number]) {
        if (!ranking_.got(job)) break;  // those that run are first
        const int workers = state.job(job).workers;
        wake = std::min(wake, state.now + std::ceil((kLimits[number] - state.run_seconds(job)) / workers));
      }
    }
    return wake;
  }

  Ranking ranking_;
  std::array<std::vector<int>, kQueues> queues_;
  std::vector<std::size_t> queue_of_;  // by job
  std::vector<int> waiting_;           // kept for its memory
};

}  // namespace

std::unique_ptr<Policy> make_las(const PolicyOptions& options) {
  return std::make_unique<Las>(options);
}

}  // namespace motley::scheduling
