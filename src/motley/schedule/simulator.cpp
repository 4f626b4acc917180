#include "motley/schedule/simulator.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace motley::schedule {
namespace {

class Replay {
 public:
  Replay(const std::vector<Job>& jobs, const Machines& machines, Policy& policy, const Clock& clock)
      : jobs_(jobs),
        machines_(machines),
        policy_(policy),
        clock_(clock),
        occupancy_(machines),
        progress_(jobs.size()),
        versions_(jobs.size()),
        started_(jobs.size()),
        done_(jobs.size()) {
    outcome_.jobs.resize(jobs.size());
  }

  Result<Outcome> run() {
    if (jobs_.empty()) return outcome_;
    outcome_.begin = jobs_.front().arrival;
    while (finished_count_ < jobs_.size()) {
      const double next = next_event();
      if (std::isinf(next)) {
        return fail(ErrorCode::kInternal, "{} leaves {} jobs waiting for ever, such as '{}'", policy_.name(),
                    jobs_.size() - finished_count_, jobs_[first_waiting()].name);
      }
      now_ = next;
      finish();
      arrive();
      MOTLEY_TRY(decide());
    }
    outcome_.end = now_;
    const double span = outcome_.end - outcome_.begin;
    outcome_.busy_share = span > 0 ? outcome_.device_seconds / (span * machines_.devices()) : 0;
    return std::move(outcome_);
  }

 private:
  // A time at which a job would finish; it does not if it was changed since.
  struct Finish {
    double time = 0;
    int job = 0;
    int version = 0;
    bool operator>(const Finish& other) const { return std::pair(time, job) > std::pair(other.time, other.job); }
  };

  Progress& progress(int job) { return progress_[static_cast<std::size_t>(job)]; }
  JobOutcome& outcome(int job) { return outcome_.jobs[static_cast<std::size_t>(job)]; }

  double next_event() {
    while (!finishes_.empty() && finishes_.top().version != version(finishes_.top().job)) finishes_.pop();
    double next = wake_;
    if (!finishes_.empty()) next = std::min(next, finishes_.top().time);
    if (arrived_count_ < jobs_.size()) next = std::min(next, jobs_[arrived_count_].arrival);
    return next;
  }

  int& version(int job) { return versions_[static_cast<std::size_t>(job)]; }

  std::size_t first_waiting() const {
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      if (!done_[job]) return job;
    }
    return 0;
  }

  // Takes a job's devices away, and notes what it had of them.
  void stop(int job) {
    Progress& one = progress(job);
    const double seconds = now_ - one.since;
    const double device_seconds = seconds * workers_of(one.placement);
    one.run_seconds += seconds;
    one.device_seconds += device_seconds;
    outcome_.device_seconds += device_seconds;
    occupancy_.give_back(one.placement);
    one.placement.clear();
    ++version(job);
  }

  void finish() {
    finished_.clear();
    while (!finishes_.empty() && finishes_.top().time <= now_) {
      const Finish next = finishes_.top();
      finishes_.pop();
      if (next.version != version(next.job)) continue;
      stop(next.job);
      done_[static_cast<std::size_t>(next.job)] = true;
      outcome(next.job).finished = now_;
      finished_.push_back(next.job);
      ++finished_count_;
    }
    std::erase_if(running_, [&](int job) { return !progress(job).runs(); });
  }

  void arrive() {
    arrived_.clear();
    while (arrived_count_ < jobs_.size() && jobs_[arrived_count_].arrival <= now_) {
      arrived_.push_back(static_cast<int>(arrived_count_++));
    }
  }

  Status decide() {
    const State state{now_, jobs_, progress_, &machines_, &occupancy_, arrived_, finished_, running_};
    const double begin = clock_.now();
    Decision decision = policy_.decide(state);
    const double seconds = clock_.now() - begin;
    ++outcome_.decisions;
    outcome_.decision_seconds += seconds;
    outcome_.longest_decision_seconds = std::max(outcome_.longest_decision_seconds, seconds);

    if (!(decision.wake > now_)) {
      return fail(ErrorCode::kInternal, "{} wants to be woken at {}, and it is {}", policy_.name(), decision.wake,
                  now_);
    }
    wake_ = decision.wake;
    for (const Change& change : decision.changes) {
      if (change.job < 0 || change.job >= static_cast<int>(arrived_count_) ||
          done_[static_cast<std::size_t>(change.job)]) {
        return fail(ErrorCode::kInternal, "{} places job {}, which is not there", policy_.name(), change.job);
      }
      if (progress(change.job).runs()) {
        stop(change.job);
      }
    }
    for (Change& change : decision.changes) {
      if (!change.placement.empty()) MOTLEY_TRY(start(change.job, std::move(change.placement)));
    }
    std::erase_if(running_, [&](int job) { return !progress(job).runs(); });
    return {};
  }

  Status start(int job, Placement placement) {
    const Job& asked = jobs_[static_cast<std::size_t>(job)];
    Progress& one = progress(job);
    if (one.runs() || !occupancy_.has_room(placement) || workers_of(placement) != asked.workers) {
      return fail(ErrorCode::kInternal, "{} gives '{}' devices that it may not have, at {} s", policy_.name(),
                  asked.name, now_);
    }
    occupancy_.take(placement);
    one.placement = std::move(placement);
    one.since = now_;
    if (started_[static_cast<std::size_t>(job)]) {
      ++outcome(job).restarts;
    } else {
      started_[static_cast<std::size_t>(job)] = true;
      outcome(job).started = now_;
    }
    finishes_.push({now_ + (asked.duration - one.run_seconds), job, version(job)});
    const auto place = std::ranges::lower_bound(running_, job);
    if (place == running_.end() || *place != job) running_.insert(place, job);  // else it moves
    return {};
  }

  const std::vector<Job>& jobs_;
  const Machines& machines_;
  Policy& policy_;
  const Clock& clock_;
  Occupancy occupancy_;
  std::vector<Progress> progress_;
  std::vector<int> versions_;  // of each job: one more at every stop
  std::vector<char> started_;
  std::vector<char> done_;
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> finishes_;
  std::vector<int> running_, arrived_, finished_;
  std::size_t arrived_count_ = 0;
  std::size_t finished_count_ = 0;
  double now_ = 0;
  double wake_ = std::numeric_limits<double>::infinity();
  Outcome outcome_;
};

}  // namespace

Result<Outcome> simulate(const std::vector<Job>& jobs, const Machines& machines, Policy& policy, const Clock& clock) {
  const int devices = machines.devices();
  for (const Job& job : jobs) {
    if (job.workers > devices) {
      return fail(ErrorCode::kInvalidInput, "job '{}' asks for {} devices and can never run; there are {}", job.name,
                  job.workers, devices);
    }
  }
  return Replay(jobs, machines, policy, clock).run();
}

Completion completion_of(const std::vector<Job>& jobs, const Outcome& outcome) {
  std::vector<double> seconds;
  double sum = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    seconds.push_back(outcome.jobs[i].finished - jobs[i].arrival);
    sum += seconds.back();
  }
  if (seconds.empty()) return {};
  const auto at = [&](double share) {
    const auto place = static_cast<std::size_t>(std::ceil(share * static_cast<double>(seconds.size()))) - 1;
    std::ranges::nth_element(seconds, seconds.begin() + static_cast<std::ptrdiff_t>(place));
    return seconds[place];
  };
  return {sum / static_cast<double>(seconds.size()), at(0.5), at(0.99)};
}

}  // namespace motley::schedule
