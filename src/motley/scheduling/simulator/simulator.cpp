#include "motley/scheduling/simulator/simulator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "motley/base/random.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {
namespace {

constexpr double kRounding = 1e-9;      // relative
constexpr int kIdleDecisions = 2;       // in a row, after which no job has more utility than its devices cost
constexpr int kMaxFailures = 10'000;    // of a job: it would never be done
constexpr std::size_t kFewStopped = 8;  // jobs, each of which is looked for
constexpr int kMaxWasted = 10'000;      // restarts in a row after which nobody trained: nobody ever would

// When jobs would finish.
class Finishes {
 public:
  explicit Finishes(std::size_t jobs) : times_(jobs) {}

  void forget(int job) { finishes_.erase({times_[index(job)], job}); }
  void await(int job, double time) {
    forget(job);
    times_[index(job)] = time;
    finishes_.emplace(time, job);
  }
  // Infinite: nobody is awaited.
  double next() const { return finishes_.empty() ? std::numeric_limits<double>::infinity() : finishes_.begin()->first; }
  int pop() { return finishes_.extract(finishes_.begin()).value().second; }

 private:
  std::vector<double> times_;                  // of each job; where it is not awaited, any
  std::set<std::pair<double, int>> finishes_;  // time, job
};

// When nodes fail and come back, each on its own.
class Outages {
 public:
  explicit Outages(const Failures& failures) : failures_(failures), random_(failures.seed) {}

  void await_failure(int node, double now) {
    const double mean = failures_.mtbf_seconds;
    if (std::isfinite(mean)) events_.emplace(now + random_.exponential(mean), node, true);
  }
  double next() const {
    return events_.empty() ? std::numeric_limits<double>::infinity() : std::get<double>(*events_.begin());
  }
  // The next one has come: a node, and whether it fails, else it is back. What it does next is awaited.
  std::pair<int, bool> pop(double now) {
    const auto [time, node, fails] = events_.extract(events_.begin()).value();
    if (fails) {
      events_.emplace(now + failures_.mttr_seconds, node, false);
    } else {
      await_failure(node, now);
    }
    down_ += fails ? 1 : -1;
    return {node, fails};
  }
  bool any_down() const { return down_ > 0; }

 private:
  const Failures failures_;
  Random random_;
  std::set<std::tuple<double, int, bool>> events_;  // time, node, whether it fails then
  int down_ = 0;                                    // nodes that have failed and not come back
};

// Rings that leave a node, and slow each other down.
class LeavingRings {
 public:
  explicit LeavingRings(const ClusterTopology& topology)
      : is_contended_(std::isfinite(topology.network.inter_node_bandwidth)), jobs_(topology.nodes.size()) {}

  bool is_contended() const { return is_contended_; }
  void enter(int job, const Placement& placement) {
    for (const Part& part : placement) {
      jobs_[index(part.node)].push_back(job);
      changed_.push_back(part.node);
    }
  }
  void leave(int job, const Placement& placement) {
    for (const Part& part : placement) {
      std::erase(jobs_[index(part.node)], job);
      changed_.push_back(part.node);
    }
  }
  int most(const Placement& placement) const {
    std::size_t most = 0;
    for (const Part& part : placement) most = std::max(most, jobs_[index(part.node)].size());
    return static_cast<int>(most);
  }
  // Of nodes to and from which others have come and gone since the last call.
  std::set<int> take_affected() {
    std::set<int> affected;
    for (const int node : std::exchange(changed_, {}))
      affected.insert(jobs_[index(node)].begin(), jobs_[index(node)].end());
    return affected;
  }

 private:
  const bool is_contended_;             // uplinks have limits
  std::vector<std::vector<int>> jobs_;  // by node
  std::vector<int> changed_;            // nodes
};

// Jobs as policies are told of them, where durations are wrong or hidden, or speeds are.
class ToldJobs {
 public:
  ToldJobs(const std::vector<Job>& jobs, const SimulationOptions& options, int types)
      : jobs_(jobs), true_jobs_(jobs), options_(options), groups_(jobs.size(), -1) {
    Random random(options.duration_seed);
    std::unordered_map<std::string, int> applications;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      Job& job = jobs_[i];
      if (options.duration_error > 1) job.duration *= std::pow(options.duration_error, 2 * random.uniform() - 1);
      if (options.hidden_duration_seconds > 0) job.duration = options.hidden_duration_seconds;
      if (!options.hide_speeds || !job.elastic || !job.elastic->measured) continue;
      const auto next = static_cast<int>(shown_.size());
      groups_[i] = options.applications_share_speeds && !job.application.empty()
                       ? applications.try_emplace(job.application, next).first->second
                       : next;
      if (groups_[i] == next) shown_.push_back({.most_workers = std::vector<int>(index(types)), .jobs = {}});
      shown_[index(groups_[i])].jobs.push_back(i);
      tell_speeds(i);
    }
  }

  static bool are_needed(const SimulationOptions& options) {
    return options.duration_error > 1 || options.hidden_duration_seconds > 0 || options.hide_speeds;
  }
  const std::vector<Job>& jobs() const { return jobs_; }
  // A job that is there has done so much, and has trained with so many workers on this type; 0: it has not.
  void learn(int number, double done_seconds, int workers, int type) {
    double& duration = jobs_[index(number)].duration;
    if (options_.hidden_duration_seconds > 0) {
      duration = done_seconds + std::max(done_seconds, options_.hidden_duration_seconds);
    } else if (done_seconds > 0 && duration <= done_seconds) {
      duration = 2 * done_seconds;
    }
    const int group = groups_[index(number)];
    if (group < 0 || type == kAnyType) return;
    Shown& shown = shown_[index(group)];
    if (shown.most_workers[index(type)] >= workers) return;
    shown.most_workers[index(type)] = workers;
    for (const std::size_t job : shown.jobs) tell_speeds(job);
  }

 private:
  // What has been seen of a job's speeds, or of all jobs of an application.
  struct Shown {
    std::vector<int> most_workers;  // by type
    std::vector<std::size_t> jobs;
  };

  void tell_speeds(std::size_t number) {
    Elastic& elastic = *jobs_[number].elastic;
    const auto known = std::make_shared<MeasuredSpeeds>(
        true_jobs_[number].elastic->measured->known_after(shown_[index(groups_[number])].most_workers));
    elastic.max_workers = known->max_workers();
    for (std::size_t type = 0; type < jobs_[number].type_speeds.size(); ++type) {
      jobs_[number].type_speeds[type] = known->at(static_cast<int>(type), 1, 1);
    }
    elastic.measured = known;
  }

  std::vector<Job> jobs_;
  const std::vector<Job>& true_jobs_;
  const SimulationOptions& options_;
  std::vector<int> groups_;  // of each job: the place in what is shown, -1 where its speeds are told
  std::vector<Shown> shown_;
};

// What tells that a replay leads nowhere.
struct Stall {
  bool has_costs = false;  // devices of jobs cost something
  int idle_decisions = 0;  // in a row
  int wasted = 0;          // restarts in a row after which nobody trained
};

class Replay {
 public:
  Replay(const std::vector<Job>& jobs, const ClusterTopology& topology, Policy& policy,
         const SimulationOptions& options)
      : jobs_(jobs), topology_(topology), policy_(policy), options_(options) {
    if (ToldJobs::are_needed(options)) told_.emplace(jobs, options, topology.type_count());
    outcome_.jobs.resize(jobs.size());
  }

  Result<Outcome> run() {
    if (jobs_.empty()) return outcome_;
    outcome_.begin = jobs_.front().arrival;
    for (std::size_t node = 0; node < topology_.nodes.size(); ++node) {
      outages_.await_failure(static_cast<int>(node), now_);
    }
    while (arrived_count_ < jobs_.size() || !active_.empty()) {
      if (options_.stop.stop_requested()) return fail(ErrorCode::kInterrupted, "stopped as asked");
      if (options_.deadline && options_.deadline->passed()) {
        return fail(ErrorCode::kTimeout, "{} jobs under {} were not simulated within {:g} s", jobs_.size(),
                    policy_.name(), options_.deadline->allowed());
      }
      const double next_of_jobs = next_event();
      const double next = std::min(next_of_jobs, outages_.next());
      // A node that comes back may give room to those that wait.
      if (std::isinf(next_of_jobs) && !outages_.any_down() && std::isinf(options_.horizon)) {
        return fail(ErrorCode::kInternal, "{} leaves {} jobs waiting for ever, such as '{}'", policy_.name(),
                    active_.size(), job(active_.front()).name);
      }
      if (next >= options_.horizon) {
        now_ = options_.horizon;
        for (const int number : running_) {
          settle(number);
          keep_run(number);
        }
        break;
      }
      now_ = next;
      finish();
      MOTLEY_TRY(fail_and_repair());
      arrive();
      MOTLEY_TRY(decide());
      if (stall_.idle_decisions == kIdleDecisions) break;
    }
    outcome_.end = now_;
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
      outcome_.jobs[job].done_seconds = progress_[job].done_seconds;
      outcome_.utility += jobs_[job].utility_after(progress_[job].done_seconds) -
                          jobs_[job].compute_cost(progress_[job].device_seconds);
    }
    const double span = outcome_.end - outcome_.begin;
    outcome_.utilisation = span > 0 ? outcome_.device_seconds / (span * topology_.devices()) : 0;
    return std::move(outcome_);
  }

 private:
  const Job& job(int number) const { return jobs_[index(number)]; }
  Progress& progress(int job) { return progress_[index(job)]; }

  double next_event() {
    double next = std::min(wake_, finishes_.next());
    if (arrived_count_ < jobs_.size()) next = std::min(next, jobs_[arrived_count_].arrival);
    return next;
  }

  // Notes what a job that runs has had and done so far.
  void settle(int number) {
    Progress& one = progress(number);
    outcome_.device_seconds += (now_ - one.since) * count_workers(one.placement);
    one.settle(now_);
  }

  void keep_run(int number) {
    if (!options_.keep_runs) return;
    const double begin = begins_[index(number)];
    if (now_ > begin) outcome_.runs.push_back({number, begin, now_, progress(number).placement});
  }

  // Takes a job's devices away.
  void stop(int number) {
    settle(number);
    Progress& one = progress(number);
    keep_run(number);
    capacity_.release(one.placement, job(number).demand());
    if (meets_others(number)) rings_.leave(number, one.placement);
    one.placement.clear();
    finishes_.forget(number);
    stopped_.push_back(number);
  }

  // Jobs on a node that fails stop, and go back to their last checkpoints.
  Status fail_and_repair() {
    failed_.clear();
    while (outages_.next() <= now_) {
      const auto [node, fails] = outages_.pop(now_);
      const int devices = topology_.nodes[index(node)].devices;
      available_.nodes[index(node)].devices = fails ? 0 : devices;
      if (!fails) {
        capacity_.release({{node, devices}}, {});
        continue;
      }
      for (const int number : running_) {
        const Placement& where = progress(number).placement;
        if (std::ranges::find(where, node, &Part::node) != where.end()) MOTLEY_TRY(lose(number));
      }
      drop_stopped();
      capacity_.take({{node, devices}}, {});
    }
    return {};
  }

  Status lose(int number) {
    Progress& one = progress(number);
    const int workers = count_workers(one.placement);
    const double trained = std::max(0.0, now_ - std::max(begins_[index(number)], one.resumes));
    stop(number);
    const double since_checkpoint = one.speed * std::fmod(trained, options_.failures.checkpoint_interval_seconds);
    const double saved = std::max(saved_[index(number)], one.done_seconds - since_checkpoint);
    outcome_.lost_device_seconds += workers * (one.done_seconds - saved) / one.speed;
    one.done_seconds = saved;
    failed_.push_back(number);
    if (++outcome_.jobs[index(number)].failures == kMaxFailures) {
      return fail(ErrorCode::kInvalidInput,
                  "job '{}' has failed {} times; accepted: nodes that fail less often, or checkpoints more often",
                  job(number).name, kMaxFailures);
    }
    return {};
  }

  // Whether a job's speed depends on who else runs where it does.
  bool meets_others(int number) const {
    return rings_.is_contended() && job(number).elastic && job(number).reserve() == 0 &&
           progress_[index(number)].placement.size() > 1;
  }

  // Those who meet others than before go on at another speed.
  void change_speeds() {
    for (const int number : rings_.take_affected()) {
      const double speed = find_speed(number);
      if (speed == progress(number).speed) continue;
      settle(number);
      progress(number).speed = speed;
      await_finish(number);
    }
  }

  double find_speed(int number) {
    const Placement& placement = progress(number).placement;
    RingPlace place = ring_place(topology_, placement);
    if (meets_others(number)) place.contention = std::max(place.contention, rings_.most(placement));
    return speed(job(number), topology_.network, place);
  }

  void await_finish(int number) {
    const Progress& one = progress(number);
    const double seconds = std::max(0.0, job(number).duration - one.done_seconds) / one.speed;
    finishes_.await(number, std::max(now_, one.resumes) + seconds);
  }

  void finish() {
    finished_.clear();
    while (finishes_.next() <= now_) {
      const int number = finishes_.pop();
      stall_.wasted = 0;
      if (told_) tell(number);
      stop(number);
      progress(number).done_seconds = job(number).duration;  // whatever rounding has made of it
      outcome_.jobs[index(number)].finished = now_;
      finished_.push_back(number);
      active_.erase(std::ranges::lower_bound(active_, number));
    }
    drop_stopped();
  }

  void drop_stopped() {
    if (stopped_.size() > kFewStopped) {
      std::erase_if(running_, [&](int job) { return !progress(job).runs(); });
    } else {
      for (const int job : stopped_) {
        const auto place = std::ranges::lower_bound(running_, job);
        if (!progress(job).runs() && place != running_.end() && *place == job) running_.erase(place);
      }
    }
    stopped_.clear();
  }

  void arrive() {
    arrived_.clear();
    while (arrived_count_ < jobs_.size() && jobs_[arrived_count_].arrival <= now_) {
      arrived_.push_back(static_cast<int>(arrived_count_++));
      active_.push_back(arrived_.back());
    }
  }

  Status decide() {
    if (told_) {
      for (const int number : active_) tell(number);
    }
    const std::vector<Job>& told = told_ ? told_->jobs() : jobs_;
    const State state{now_, told, progress_, &available_, &capacity_, arrived_, finished_, running_, active_, failed_};
    const double begin = options_.clock->now();
    MOTLEY_ASSIGN(Decision decision, policy_.decide(state));
    const double seconds = options_.clock->now() - begin;
    ++outcome_.decisions;
    outcome_.decision_seconds += seconds;
    outcome_.longest_decision_seconds = std::max(outcome_.longest_decision_seconds, seconds);

    if (!(decision.wake > now_)) {
      return fail(ErrorCode::kInternal, "{} wants to be woken at {}, and it is {}", policy_.name(), decision.wake,
                  now_);
    }
    wake_ = decision.wake;
    for (const Change& change : decision.changes) {
      if (!std::ranges::binary_search(active_, change.job)) {
        return fail(ErrorCode::kInternal, "{} places job {}, which is not there", policy_.name(), change.job);
      }
      if (!progress(change.job).runs()) continue;
      MOTLEY_TRY(count_wasted(change.job));
      stop(change.job);
    }
    for (Change& change : decision.changes) {
      if (!change.placement.empty()) MOTLEY_TRY(start(change.job, std::move(change.placement)));
    }
    drop_stopped();
    change_speeds();
    const bool is_idle = stall_.has_costs && running_.empty() && arrived_count_ == jobs_.size() && !outages_.any_down();
    stall_.idle_decisions = is_idle ? stall_.idle_decisions + 1 : 0;
    return {};
  }

  void tell(int number) {
    const Progress& one = progress(number);
    const bool trains = one.runs() && !one.is_restarting(now_);
    told_->learn(number, one.done_seconds + one.seconds_done_since(now_), trains ? count_workers(one.placement) : 0,
                 find_type(topology_, one.placement));
  }

  // A job is about to lose its workers. Stops a replay in which jobs only ever restart.
  Status count_wasted(int number) {
    const bool is_wasted = progress(number).is_restarting(now_) && outcome_.jobs[index(number)].restarts > 0;
    stall_.wasted = is_wasted ? stall_.wasted + 1 : 0;
    if (stall_.wasted < kMaxWasted) return {};
    stall_.wasted = 0;
    const auto trains = [&](int other) { return !progress(other).is_restarting(now_); };
    if (std::ranges::any_of(running_, trains)) return {};
    return fail(
        ErrorCode::kInvalidInput,
        "'{}' changes the workers of jobs such as '{}' before they have restarted, {} times in a row: a restart "
        "takes {:g} s; accepted: longer slots (--slot-duration), or shorter restarts",
        policy_.name(), job(number).name, kMaxWasted, job(number).elastic->restart_cost_seconds);
  }

  Status start(int number, Placement placement) {
    const Job& asked = job(number);
    Progress& one = progress(number);
    const int workers = count_workers(placement);
    const bool can_run = asked.type_speeds.empty() || (find_type(topology_, placement) != kAnyType &&
                                                       asked.speed_on(find_type(topology_, placement)) > 0);
    if (one.runs() || !can_run || workers < asked.min_workers() || workers > asked.max_workers() ||
        !capacity_.fits(placement, asked.demand())) {
      return fail(ErrorCode::kInternal, "{} gives '{}' {} workers that it may not have, at {} s", policy_.name(),
                  asked.name, workers, now_);
    }
    capacity_.take(placement, asked.demand());
    one.placement = std::move(placement);
    one.since = begins_[index(number)] = now_;
    saved_[index(number)] = one.done_seconds;
    JobOutcome& outcome = outcome_.jobs[index(number)];
    const bool is_first = std::isinf(outcome.started);
    if (is_first) {
      outcome.started = now_;
    } else {
      ++outcome.restarts;
    }
    const bool costs = asked.elastic && (!is_first || options_.first_start_costs);
    one.resumes = now_ + (costs ? asked.elastic->restart_cost_seconds : 0);
    if (meets_others(number)) rings_.enter(number, one.placement);
    one.speed = find_speed(number);
    await_finish(number);
    const auto place = std::ranges::lower_bound(running_, number);
    if (place == running_.end() || *place != number) running_.insert(place, number);  // else it moves
    return {};
  }

  const std::vector<Job>& jobs_;
  const ClusterTopology& topology_;
  Policy& policy_;
  const SimulationOptions& options_;
  Stall stall_{.has_costs = std::ranges::any_of(jobs_, [](const Job& job) { return job.device_hour_cost > 0; })};
  Finishes finishes_{jobs_.size()};
  Outages outages_{options_.failures};
  LeavingRings rings_{topology_};
  std::optional<ToldJobs> told_;
  Capacity capacity_{topology_};
  ClusterTopology available_ = topology_;  // nodes that have failed have no devices
  // Of each job: what became of it, since when it runs where it does, and the seconds of its duration that it had done
  // when it began there.
  std::vector<Progress> progress_ = std::vector<Progress>(jobs_.size());
  std::vector<double> begins_ = std::vector<double>(jobs_.size());
  std::vector<double> saved_ = std::vector<double>(jobs_.size());
  std::vector<int> running_, active_, arrived_, finished_, failed_;
  std::vector<int> stopped_;  // that running_ may still have
  std::size_t arrived_count_ = 0;
  double now_ = 0;
  double wake_ = std::numeric_limits<double>::infinity();
  Outcome outcome_;
};

Status check_can_run(const ClusterTopology& topology, const Job& job) {
  if (!job.type_speeds.empty() && static_cast<int>(job.type_speeds.size()) != topology.type_count()) {
    return fail(ErrorCode::kInvalidInput, "job '{}' has speeds for {} types of devices; accepted: for each of {}",
                job.name, job.type_speeds.size(), topology.type_count());
  }
  if (!job.requests.empty() && job.requests.size() != topology.resources.size()) {
    return fail(ErrorCode::kInvalidInput, "job '{}' requests {} resources; accepted: none, or each of {}", job.name,
                job.requests.size(), topology.resources.size());
  }
  const int most = max_devices(topology, job);
  if (job.workers <= most) return {};
  if (job.requests.empty() || job.workers > topology.devices()) {
    return fail(ErrorCode::kInvalidInput, "job '{}' asks for {} and can never run; there are {}{}", job.name,
                format_count(job.workers, "device"), most, job.type_speeds.empty() ? "" : " of a type on which it can");
  }
  std::vector<std::string> requests;
  for (std::size_t i = 0; i < job.requests.size(); ++i) {
    if (job.requests[i] > 0) requests.push_back(describe_amount(topology.resources[i], job.requests[i]));
  }
  return fail(ErrorCode::kInvalidInput,
              "job '{}' asks for {} with {} for each and can never run; accepted: up to {}, for which nodes have room",
              job.name, format_count(job.workers, "worker"), fmt::join(requests, " and "), most);
}

}  // namespace

Result<Outcome> simulate(const std::vector<Job>& jobs, const ClusterTopology& topology, Policy& policy,
                         const SimulationOptions& options) {
  for (const Node& node : topology.nodes) {
    if (node.resources.size() == topology.resources.size()) continue;
    return fail(ErrorCode::kInvalidInput, "node '{}' has {} resources; accepted: all {} of the cluster", node.name,
                node.resources.size(), topology.resources.size());
  }
  for (const Job& job : jobs) MOTLEY_TRY(check_can_run(topology, job));
  return Replay(jobs, topology, policy, options).run();
}

Completion compute_completion(const std::vector<Job>& jobs, const Outcome& outcome) {
  std::vector<double> seconds;
  double sum = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (std::isinf(outcome.jobs[i].finished)) continue;
    seconds.push_back(outcome.jobs[i].finished - jobs[i].arrival);
    sum += seconds.back();
  }
  if (seconds.empty()) return {};
  return {sum / static_cast<double>(seconds.size()), lower_median(seconds), percentile(seconds, 0.99)};
}

Fairness compute_fairness(const std::vector<Job>& jobs, const ClusterTopology& topology, const Outcome& outcome) {
  // The sum over time of the jobs that are there, at each time at which their number changes.
  std::vector<std::pair<double, double>> changes;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    changes.emplace_back(jobs[i].arrival, 1);
    if (std::isfinite(outcome.jobs[i].finished)) changes.emplace_back(outcome.jobs[i].finished, -1);
  }
  std::ranges::sort(changes);
  std::vector<double> times, sums;
  double there = 0, sum = 0;
  for (const auto& [time, change] : changes) {
    if (!times.empty()) sum += there * (time - times.back());
    times.push_back(time);
    sums.push_back(sum);
    there += change;
  }
  const auto sum_until = [&](double time) {
    return sums[static_cast<std::size_t>(std::ranges::lower_bound(times, time) - times.begin())];
  };
  Fairness fairness;
  double count = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double finished = outcome.jobs[i].finished;
    const double took = finished - jobs[i].arrival;
    if (std::isinf(finished) || !(took > 0) || !(jobs[i].duration > 0)) continue;
    const double others = (sum_until(finished) - sum_until(jobs[i].arrival)) / took;  // itself among them
    const double part = std::min(1.0, topology.devices() / (others * jobs[i].workers));
    const double ratio = took * part / jobs[i].duration;
    fairness.mean += ratio;
    fairness.worst = std::max(fairness.worst, ratio);
    fairness.unfair += ratio > 1 + kRounding ? 1 : 0;
    ++count;
  }
  if (count > 0) {
    fairness.mean /= count;
    fairness.unfair /= count;
  }
  return fairness;
}

}  // namespace motley::scheduling
