#include "motley/scheduling/service/controller.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "motley/base/guard.h"
#include "motley/base/text.h"
#include "motley/base/units.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/service/job_files.h"
#include "motley/scheduling/service/take_over.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {
namespace {

constexpr double kLookSeconds = 0.05;  // between looks at attempts
constexpr double kNodeSeconds = 1;     // the longest without a look at nodes
constexpr double kRetrySeconds = 1;    // after which a store or a policy that failed is asked again
constexpr double kStartSeconds = 2;    // after which an attempt that has not begun is started again
constexpr double kAlmostDone = 0.95;   // of what a job should take: it takes longer than was said
constexpr double kLonger = 1.5;        // then so many times as long
constexpr std::size_t kMaxNames = 3;   // in a reason
// Between two requests of the same: the first one may have failed, or been lost with the service.
constexpr double kAskAgainSeconds = 1;

int to_number(std::size_t place) {
  return static_cast<int>(place);
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMaxNames) text += fmt::format(" and {} more", names.size() - kMaxNames);
  return text;
}

// Whether each part of one is within the other.
bool is_within(const Placement& inner, const Placement& outer) {
  return std::ranges::all_of(inner, [&](const Part& part) {
    const auto found = std::ranges::find(outer, part.node, &Part::node);
    return found != outer.end() && found->workers >= part.workers;
  });
}

// Whether a job that was submitted is one that is known: whatever tells its submission from others, as long as that is
// not over.
bool is_same_job(const JobRecord& known, SubmittedJob job, const std::string& tenant) {
  if (known.tenant != tenant) return false;
  if (!is_over(known.state)) job.submission = known.job.submission;
  return write_json(known.job) == write_json(job);
}

// In which it should have answered: what it is granted to leave and to begin anew.
double resize_seconds(const SubmittedJob& job) {
  return job.grace_seconds + job.restart_cost_seconds;
}

}  // namespace

Result<Controller> Controller::make(std::unique_ptr<Store> store, ClusterTopology topology,
                                    std::filesystem::path folder, ControllerOptions options) {
  Controller one;
  MOTLEY_ASSIGN(one.records_, store->jobs());
  MOTLEY_ASSIGN(const std::vector<std::string> drained, store->drained_nodes());
  MOTLEY_ASSIGN(one.policy_, make_policy(options.policy, options.policy_options));
  one.store_ = std::move(store);
  one.drained_.insert(drained.begin(), drained.end());
  one.topology_ = std::move(topology);
  one.available_ = one.topology_;
  one.folder_ = std::move(folder);
  one.options_ = std::move(options);
  Capacity free(one.topology_);
  for (std::size_t i = 0; i < one.records_.size(); ++i) {
    const JobRecord& record = one.records_[i];
    if (record.id != to_number(i) + 1) return fail(ErrorCode::kCorrupt, "job {} is missing in the state", i + 1);
    one.first_ids_.emplace(record.job.name, record.id);
    one.ids_.insert_or_assign(record.job.name, record.id);
    if (!is_over(record.state)) one.add_live(record.id, &free);
  }
  return one;
}

const JobRecord* Controller::find(const std::string& name) const {
  if (const auto found = ids_.find(name); found != ids_.end()) return &record(found->second);
  const std::optional<int> id = parse_number<int>(name);
  return id && *id >= 1 && *id <= to_number(records_.size()) ? &record(*id) : nullptr;
}

bool Controller::is_available(std::size_t node) const {
  const std::string& name = topology_.nodes[node].name;
  return !drained_.contains(name) && !down_.contains(name);
}

const char* Controller::node_state(std::size_t node) const {
  return drained_.contains(topology_.nodes[node].name) ? "drained" : is_available(node) ? "up" : "down";
}

std::vector<Controller::NodeResource> Controller::resources(std::size_t node) const {
  std::vector<NodeResource> resources;
  for (std::size_t i = 0; i < topology_.resources.size(); ++i) {
    const std::string& name = topology_.resources[i];
    const double total = topology_.nodes[node].resources[i];
    if (!std::isfinite(total)) continue;
    double used = 0;
    for (const Live& live : live_) {
      const JobRecord& one = record(live.id);
      for (const NodeAllocation& allocation : one.nodes) {
        if (allocation.node == topology_.nodes[node].name)
          used += allocation.workers * requested(one.job, name, topology_);
      }
    }
    resources.push_back({name, total, used});
  }
  return resources;
}

// --- What comes from outside

// That the tenant may have so many jobs more.
Status Controller::check_cap(const std::string& tenant, std::size_t more) const {
  const auto has = std::ranges::count_if(places_, [&](const auto& one) { return record(one.first).tenant == tenant; });
  if (more == 0 || to_number(more) <= options_.max_jobs_per_tenant - has) return {};
  return fail(ErrorCode::kTooMany, "tenant '{}' has {} and wants {} more; --max-jobs-per-tenant lets it have {}",
              tenant, format_count(has, "unfinished job"), more, options_.max_jobs_per_tenant);
}

Result<std::vector<int>> Controller::submit(const std::vector<SubmittedJob>& jobs, double now,
                                            const std::string& tenant) {
  std::vector<int> ids;
  std::vector<JobRecord> added;
  std::map<std::string, std::size_t> places;  // among those added, by name
  for (const SubmittedJob& job : jobs) {
    MOTLEY_TRY(check(job, topology_));
    if (!job.speeds.empty() && !knows_types(options_.policy)) {
      return fail(ErrorCode::kInvalidInput, "job '{}': speeds are for {} types; accepted: none, as the policy is {}",
                  job.name, job.speeds.size(), options_.policy);
    }
    const auto same = places.find(job.name);
    const auto before = ids_.find(job.name);
    const JobRecord* known = same != places.end()   ? &added[same->second]
                             : before != ids_.end() ? &record(before->second)
                                                    : nullptr;
    const bool is_same = known != nullptr && is_same_job(*known, job, tenant);
    if (known != nullptr && !is_same && !is_over(known->state)) {
      return fail(ErrorCode::kInvalidInput,
                  "job '{}': name is that of another job, {}, which is {}; accepted: another name, or this one once "
                  "that is over",
                  job.name, known->id, to_string(known->state));
    }
    if (!MOTLEY_GUARD("controller-same-job", !is_same)) {
      ids.push_back(known->id);
      continue;
    }
    places.emplace(job.name, added.size());
    ids.push_back(to_number(records_.size() + added.size()) + 1);
    added.push_back({.id = ids.back(), .tenant = tenant, .job = job, .submitted = now});
  }
  MOTLEY_TRY(check_cap(tenant, added.size()));
  std::vector<const JobRecord*> unsaved;
  for (const JobRecord& record : added) unsaved.push_back(&record);
  MOTLEY_TRY(store_->save(unsaved));
  for (JobRecord& record : added) {
    first_ids_.emplace(record.job.name, record.id);
    ids_.insert_or_assign(record.job.name, record.id);
    records_.push_back(std::move(record));
    add_live(records_.back().id);
  }
  return ids;
}

Status Controller::cancel(const std::string& name, double now) {
  const JobRecord* found = find(name);
  if (found == nullptr) return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  JobRecord& one = record(found->id);
  if (is_over(one.state)) return fail(ErrorCode::kInvalidInput, "job '{}' is {} already", name, to_string(one.state));
  JobRecord cancelled = one;
  cancelled.is_cancelled = true;
  cancelled.changed = "cancelled by its owner";
  if (one.state == JobState::kPending) {
    cancelled.state = JobState::kCancelled;
    cancelled.finished = now;
  }
  MOTLEY_TRY(store_->save({&cancelled}));
  one = std::move(cancelled);
  const std::size_t place = places_.at(one.id);
  if (is_over(one.state)) {
    end_job(place, one.state, now);
  } else {
    retarget(place, {}, now);
    forget(place);
  }
  return {};
}

Status Controller::drain(const std::string& node, bool is_drained) {
  if (topology_.node_named(node) < 0) {
    std::vector<std::string> names;
    for (const Node& known : topology_.nodes) names.push_back(known.name);
    return fail(ErrorCode::kInvalidInput, "there is no node '{}'; accepted: {}", node, fmt::join(names, ", "));
  }
  MOTLEY_TRY(store_->save_drained(node, is_drained));
  if (is_drained) {
    drained_.insert(node);
  } else {
    drained_.erase(node);
  }
  has_changed_ = true;
  return {};
}

// --- Records and what the policy knows

Attempt Controller::make_attempt(const JobRecord& record) const {
  // What a former job of the name has left stays what it is.
  const bool is_first = first_ids_.at(record.job.name) == record.id;
  const std::filesystem::path job =
      folder_ / "jobs" / (is_first ? record.job.name : fmt::format("{}~{}", record.job.name, record.id));
  return {
      record.id,
      record.job.name,
      record.attempt,
      make_command(record.job, count_workers(record.nodes), record.attempt, (job / "work").string()),
      record.job.directory,
      job / fmt::format("attempt-{}", record.attempt),
      record.nodes,
      record.resizing.to.empty() ? "" : fmt::format("{} {}", count_workers(record.resizing.to), record.resizing.number),
      record.job.cpus_per_worker,
      record.job.memory_bytes_per_worker};
}

Placement Controller::to_placement(const std::vector<NodeAllocation>& nodes) const {
  Placement placement;
  for (const NodeAllocation& allocation : nodes) {
    const int node = topology_.node_named(allocation.node);
    if (node < 0) return {};  // the cluster has been given other nodes
    placement.push_back({node, allocation.workers});
  }
  std::ranges::sort(placement, {}, &Part::node);
  return placement;
}

std::vector<NodeAllocation> Controller::to_nodes(const Placement& placement) const {
  std::vector<NodeAllocation> nodes;
  for (const Part& part : placement) nodes.push_back({topology_.nodes[index(part.node)].name, part.workers});
  return nodes;
}

bool Controller::are_available(const Placement& placement) const {
  return std::ranges::all_of(placement, [&](const Part& part) { return is_available(index(part.node)); });
}

// Of a job that runs, there has to be `free` what it has, which is then taken; else it is to end.
void Controller::add_live(int id, Capacity* free) {
  const JobRecord& one = record(id);
  places_.emplace(id, live_.size());
  live_.push_back({id, std::max(one.attempt_started, one.resizing.asked)});
  jobs_.push_back(make_job(one.job, one.submitted, topology_));
  jobs_.back().elastic->restart_cost_seconds = one.restart_cost();
  Progress progress{.run_seconds = one.run_seconds,
                    .device_seconds = one.device_seconds,
                    .done_seconds = one.done_seconds,
                    .since = std::max(one.attempt_started, one.resizing.asked)};
  const Placement there = to_placement(one.resizing.to.empty() ? one.nodes : one.resizing.to);
  const bool has_room = free == nullptr || free->fits(there, jobs_.back().demand());
  if (one.state == JobState::kRunning && !one.is_cancelled && !has_room) {
    record(id).changed = "stopped, as its nodes have less than it had there";
    touch(id);
  } else if (one.state == JobState::kRunning && !one.is_cancelled) {
    if (free != nullptr) free->take(there, jobs_.back().demand());
    progress.placement = there;
    progress.resumes = one.attempt_started + one.start_seconds();
    if (!progress.placement.empty()) {
      progress.speed = speed(jobs_.back(), topology_.network, ring_place(topology_, progress.placement));
    }
  }
  progress_.push_back(std::move(progress));
  live_.back().is_forgotten = one.is_cancelled;
  if (!one.is_cancelled) arrived_.push_back(to_number(live_.size()) - 1);
  has_changed_ = true;
}

// Counts what a job has had and done until now, as far as its attempt runs: not while it ends, nor while it waits for
// its target's devices.
void Controller::settle(std::size_t place, double now) {
  if (record(live_[place].id).state != JobState::kRunning) {
    progress_[place].since = now;
    return;
  }
  progress_[place].settle(now);
  while (progress_[place].done_seconds > kAlmostDone * jobs_[place].duration) jobs_[place].duration *= kLonger;
}

// Into the record, so that another service goes on counting from here.
void Controller::settle_record(std::size_t place, double now) {
  settle(place, now);
  JobRecord& one = record(live_[place].id);
  const Progress& progress = progress_[place];
  one.run_seconds = progress.run_seconds;
  one.device_seconds = progress.device_seconds;
  one.done_seconds = progress.done_seconds;
  touch(one.id);
}

void Controller::retarget(std::size_t place, Placement target, double now) {
  settle(place, now);
  Progress& progress = progress_[place];
  const JobRecord& one = record(live_[place].id);
  progress.placement = std::move(target);
  progress.resumes = now + (one.attempt > 0 ? one.restart_cost() : 0);
  if (!progress.placement.empty()) {
    progress.speed = speed(jobs_[place], topology_.network, ring_place(topology_, progress.placement));
  }
  live_[place].changed = now;
}

// To the policy a job is over once it is cancelled, however long its attempt takes to end: others get what it had.
void Controller::forget(std::size_t place) {
  has_changed_ = true;
  if (std::exchange(live_[place].is_forgotten, true)) return;
  const auto arrived = std::ranges::find(arrived_, to_number(place));
  if (arrived != arrived_.end()) {
    arrived_.erase(arrived);  // the policy has never heard of it
  } else {
    finished_.push_back(to_number(place));
  }
}

void Controller::end_job(std::size_t place, JobState state, double now) {
  settle(place, now);
  JobRecord& one = record(live_[place].id);
  one.state = state;
  one.finished = now;
  one.nodes.clear();
  one.resizing.to.clear();
  one.stop_by = 0;
  progress_[place].placement.clear();
  places_.erase(one.id);
  forget(place);
  touch(one.id);
}

// Where it fails, what was to be done is left, and comes again with later looks, as it does after a kill.
void Controller::save() {
  std::vector<const JobRecord*> records;
  for (const int id : touched_) records.push_back(&record(id));
  const Status saved = store_->save(records);
  store_problem_ = saved ? "" : saved.error().message;
  if (saved) return touched_.clear();
  for (const Command& one : std::exchange(commands_, {})) live_[places_.at(one.attempt.job)].tried = kNever;
}

// --- A step

std::vector<Attempt> Controller::watched() const {
  std::vector<Attempt> attempts;
  for (const auto& [id, place] : places_) {
    if (record(id).state != JobState::kPending) attempts.push_back(make_attempt(record(id)));
  }
  return attempts;
}

Controller::Step Controller::step(double now, const Observation& seen) {
  commands_.clear();
  take_in_nodes(seen, now);
  for (const Problem& one : seen.problems) put_off_kill(one, now);
  for (const AttemptSeen& one : seen.attempts) take_in(one, now);
  for (const Problem& one : seen.problems) take_in(one);
  if (has_changed_ || now >= wake_) decide(now);
  reconcile(now);
  save();
  if (!store_problem_.empty()) return {{}, now + kRetrySeconds};
  const bool is_watching =
      std::ranges::any_of(places_, [&](const auto& one) { return record(one.first).state != JobState::kPending; });
  return {std::move(commands_), std::min(wake_, now + (is_watching ? kLookSeconds : kNodeSeconds))};
}

void Controller::take_in(const Problem& problem) {
  const auto known = places_.find(problem.job);
  if (known != places_.end() && record(problem.job).attempt == problem.attempt) {
    live_[known->second].problem = problem.what;
  }
}

// The grace period of an attempt that could not be asked to end begins once it has been.
void Controller::put_off_kill(const Problem& problem, double now) {
  const auto known = places_.find(problem.job);
  if (!problem.was_asked_to_end || known == places_.end()) return;
  JobRecord& one = record(problem.job);
  if (one.attempt != problem.attempt || one.state != JobState::kStopping || one.is_killed) return;
  live_[known->second].is_unasked = true;
  one.stop_by = now + one.job.grace_seconds;
  touch(one.id);
}

// Whether a stopping attempt has not been asked to end by this controller, or could not be.
bool Controller::is_to_be_asked(const Live& live, double now) const {
  return live.tried < 0 || (live.is_unasked && now >= live.tried + kAskAgainSeconds);
}

void Controller::take_in(const AttemptSeen& seen, double now) {
  JobRecord& one = record(seen.job);
  const auto known = places_.find(seen.job);
  if (known == places_.end() || one.state == JobState::kPending || one.attempt != seen.number) return;
  const std::size_t place = known->second;
  switch (seen.status.state) {
    case AttemptStatus::State::kRunning:
      live_[place].problem.clear();
      live_[place].count = seen.status.count;
      if (one.state == JobState::kRunning) follow_count(place, now);
      if (one.state == JobState::kStopping && is_to_be_asked(live_[place], now)) {
        // A service that was killed may not have come to it, or one whose store failed: it has all its time from now
        // on.
        if (live_[place].tried < 0) one.stop_by = std::max(one.stop_by, now + one.job.grace_seconds);
        touch(one.id);
        live_[place].tried = now;
        live_[place].is_unasked = false;
        command(Command::Kind::kAskToEnd, one);
      }
      if (one.state == JobState::kStopping && now >= one.stop_by) {
        one.is_killed = true;
        touch(one.id);
        command(Command::Kind::kKill, one);
      }
      break;
    case AttemptStatus::State::kUnknown:
      // A service was killed after it had said that it would be started, or it was asked to end before it began.
      if (one.state == JobState::kRunning && are_available(to_placement(one.nodes))) {
        if (now < live_[place].tried + kStartSeconds) break;
        live_[place].tried = now;
        command(Command::Kind::kStart, one);
      } else {
        if (one.state == JobState::kRunning) one.stop_by = now + one.job.grace_seconds;
        one.state = JobState::kStopping;
        touch(one.id);
        // It will never begin, which the next look sees.
        if (MOTLEY_KEEPS("planted-never-to-begin")) command(Command::Kind::kAskToEnd, one);
      }
      break;
    case AttemptStatus::State::kEnded:
    case AttemptStatus::State::kLost:
      attempt_over(place, seen.status, now);
      break;
  }
}

// What the attempt's launcher has said: that there is progress with the workers that it has, and what became of a
// request for others.
void Controller::follow_count(std::size_t place, double now) {
  Live& live = live_[place];
  JobRecord& one = record(live.id);
  if (live.count && live.count->workers > 0 && !one.has_progress) {
    one.has_progress = true;
    touch(one.id);
    if (one.attempt > 1) measure(place, one.stop_seconds + live.count->since - one.attempt_started);
  }
  if (one.resizing.to.empty()) return;
  const bool has_answered = live.count && live.count->asked == make_attempt(one).request;
  if (has_answered && live.count->refused.empty()) {
    measure(place, live.count->since - one.resizing.asked);
    one.nodes = std::exchange(one.resizing.to, {});
    one.changed += ", in place";
    touch(one.id);
  } else if (has_answered || now >= one.resizing.asked + resize_seconds(one.job)) {
    one.changed += "; by a restart, as " +
                   (has_answered ? fmt::format("its launcher says: {}", live.count->refused)
                                 : fmt::format("it has not answered within {:.3g} s", resize_seconds(one.job)));
    ask_to_end(one, now);
  } else if (now >= live.tried + kAskAgainSeconds) {
    live.tried = now;
    command(Command::Kind::kResize, one);
  }
}

// How long a change of its workers took, from when it was asked to its first step with the others.
void Controller::measure(std::size_t place, double seconds) {
  JobRecord& one = record(live_[place].id);
  const double measured = std::max(0.0, seconds);
  one.measured_restart_cost = (measured + one.measured_restart_cost.value_or(measured)) / 2;
  jobs_[place].elastic->restart_cost_seconds = one.restart_cost();
  touch(one.id);
}

void Controller::attempt_over(std::size_t place, const AttemptStatus& status, double now) {
  settle_record(place, now);
  JobRecord& one = record(live_[place].id);
  has_changed_ = true;
  live_[place].problem.clear();
  const bool was_asked = one.state == JobState::kStopping;
  const Placement was_on = to_placement(one.nodes);
  one.stop_seconds = was_asked ? std::max(0.0, now - (one.stop_by - one.job.grace_seconds)) : 0;
  one.nodes.clear();
  one.resizing.to.clear();
  one.stop_by = 0;
  if (status.state == AttemptStatus::State::kEnded) one.exit_code = status.exit_code;
  if (status.state == AttemptStatus::State::kEnded && status.exit_code == 0) {
    one.changed = fmt::format("completed after {} with {}", format_seconds(one.run_seconds),
                              format_count(count_workers(was_on), "worker"));
    end_job(place, JobState::kCompleted, now);
    return;
  }
  if (one.is_cancelled) {
    end_job(place, JobState::kCancelled, now);
    return;
  }
  one.state = JobState::kPending;
  if (was_asked) return;  // it goes on with its target, where it has one
  const std::string how = status.state == AttemptStatus::State::kLost ? std::string("its processes were lost")
                          : status.why.empty() ? fmt::format("its command ended with exit code {}", status.exit_code)
                                               : status.why;
  one.changed = fmt::format("attempt {} failed: {}", one.attempt, how);
  const bool is_to_blame = !status.node_failed && are_available(was_on);
  if (is_to_blame && ++one.failures > one.job.max_retries) {
    end_job(place, JobState::kFailed, now);
    return;
  }
  retarget(place, {}, now);
}

void Controller::take_in_nodes(const Observation& seen, double now) {
  if (seen.down_nodes) {
    std::set<std::string> down_now(seen.down_nodes->begin(), seen.down_nodes->end());
    if (down_now != down_) has_changed_ = true;
    down_ = std::move(down_now);
  }
  available_ = topology_;
  for (std::size_t i = 0; i < topology_.nodes.size(); ++i) {
    if (!is_available(i)) available_.nodes[i].devices = 0;
  }
  for (const auto& [id, place] : places_) {
    const Placement& target = progress_[place].placement;
    const auto gone = std::ranges::find_if(target, [&](const Part& part) { return !is_available(index(part.node)); });
    if (gone == target.end()) continue;
    JobRecord& one = record(id);
    const std::string& node = topology_.nodes[index(gone->node)].name;
    one.changed = fmt::format("leaves {}, which is {}", node, drained_.contains(node) ? "drained" : "down");
    touch(id);
    retarget(place, {}, now);
    has_changed_ = true;
  }
}

void Controller::decide(double now) {
  has_changed_ = false;
  Capacity capacity(available_);
  std::vector<int> running, active;
  for (const auto& [id, place] : places_) {
    settle(place, now);
    if (live_[place].is_forgotten) continue;
    active.push_back(to_number(place));
    const Placement& target = progress_[place].placement;
    if (target.empty()) continue;
    capacity.take(target, jobs_[place].demand());
    running.push_back(to_number(place));
  }
  std::ranges::sort(running);
  std::ranges::sort(active);
  const State state{now, jobs_, progress_, &available_, &capacity, arrived_, finished_, running, active};
  Result<Decision> decision = policy_->decide(state);
  policy_problem_ = decision ? "" : fmt::format("{} failed: {}", options_.policy, decision.error().message);
  if (!decision) return ask_another_policy(active, now);
  const Decision taken = take_over(state, std::move(*decision), [&](int place) { return held_until(index(place)); });
  arrived_.clear();
  finished_.clear();
  wake_ = taken.wake;
  apply(taken.changes, now);
}

// One that failed may be in the midst of something: to another one all jobs are new, as after a kill.
void Controller::ask_another_policy(const std::vector<int>& active, double now) {
  if (auto policy = make_policy(options_.policy, options_.policy_options)) policy_ = std::move(*policy);
  arrived_ = active;
  finished_.clear();
  wake_ = now + kRetrySeconds;
}

// Until when a job's workers stay as they are.
double Controller::held_until(std::size_t place) const {
  const JobRecord& one = record(live_[place].id);
  if (one.is_cancelled) return std::numeric_limits<double>::infinity();
  return progress_[place].runs() ? live_[place].changed + options_.cooldown(one.restart_cost())
                                 : -std::numeric_limits<double>::infinity();
}

void Controller::apply(const std::vector<Change>& changes, double now) {
  const auto workers_before = [&](const Change& change) {
    return count_workers(progress_[index(change.job)].placement);
  };
  std::vector<std::string> stopped, started;
  for (const Change& change : changes) {
    const std::string& name = record(live_[index(change.job)].id).job.name;
    const int before = workers_before(change), after = count_workers(change.placement);
    if (after > before) started.push_back(name);
    if (after < before) stopped.push_back(name);
  }
  for (const Change& change : changes) {
    const auto place = index(change.job);
    JobRecord& one = record(live_[place].id);
    const int before = workers_before(change), after = count_workers(change.placement);
    std::string why = before == 0       ? "started with " + format_count(after, "worker")
                      : after == 0      ? std::string("stopped")
                      : before == after ? std::string("moved")
                                        : fmt::format("{} from {} to {}", before < after ? "grown" : "shrunk", before,
                                                      format_count(after, "worker"));
    if (after < before && !started.empty()) why += " for " + join_names(started);
    if (after > before && before > 0 && !stopped.empty()) why += ", which " + join_names(stopped) + " gave back";
    one.changed = why;
    touch(one.id);
    retarget(place, change.placement, now);
  }
}

void Controller::ask_to_end(JobRecord& one, double now) {
  settle_record(places_.at(one.id), now);
  one.state = JobState::kStopping;
  one.stop_by = now + one.job.grace_seconds;
  one.resizing.to.clear();
  Live& live = live_[places_.at(one.id)];
  live.tried = now;
  live.is_unasked = false;
  command(Command::Kind::kAskToEnd, one);
}

// To go on with its target.
void Controller::ask_to_resize(std::size_t place, double now) {
  settle_record(place, now);
  JobRecord& one = record(live_[place].id);
  one.resizing.to = to_nodes(progress_[place].placement);
  ++one.resizing.number;
  one.resizing.asked = now;
  live_[place].tried = now;
  command(Command::Kind::kResize, one);
}

// Whether its launcher has said that it can change its workers.
bool Controller::can_be_resized(std::size_t place) const {
  const std::optional<train::WorkerCount>& count = live_[place].count;
  return count && count->max_workers > 0;
}

// Empty: it can be asked to go on with its target.
std::string Controller::why_not_in_place(std::size_t place) const {
  const JobRecord& one = record(live_[place].id);
  const Placement& target = progress_[place].placement;
  const std::optional<train::WorkerCount>& count = live_[place].count;
  const int wanted = count_workers(target);
  if (one.job.resize == "restart") return "that is how it is resized";
  if (!can_be_resized(place)) return "its launcher has not said that it can be resized in place";
  if (wanted < count->min_workers || wanted > count->max_workers) {
    return fmt::format("its launcher takes {} to {}", count->min_workers, format_count(count->max_workers, "worker"));
  }
  const Placement there = to_placement(one.nodes);
  if (there.empty() || (!is_within(there, target) && !is_within(target, there))) return "it goes to other nodes";
  return "";
}

// Brings attempts in line with targets: first what is to end or to shrink, then what has room now.
void Controller::reconcile(double now) {
  Capacity free(available_);
  std::vector<std::size_t> growing, waiting;
  for (const auto& [id, place] : places_) {
    JobRecord& one = record(id);
    if (one.state == JobState::kPending) {
      if (!progress_[place].placement.empty()) waiting.push_back(place);
      continue;
    }
    const Placement there = to_placement(one.nodes);
    const Placement& target = progress_[place].placement;
    Placement held = there;
    std::erase_if(held, [&](const Part& part) { return !is_available(index(part.node)); });
    const bool has_room = free.fits(held, jobs_[place].demand());
    if (has_room) free.take(held, jobs_[place].demand());
    const bool is_where_it_should = there == target && !(there.empty() && !one.nodes.empty());  // its nodes may be gone
    if (one.state != JobState::kRunning || is_where_it_should) continue;
    if (!one.resizing.to.empty() && !target.empty()) continue;  // once it has answered
    const std::string why_not = target.empty() ? "it stops" : why_not_in_place(place);
    if (!why_not.empty()) {
      const std::string& resize = one.job.resize;
      const bool was_hoped_for = resize == "in-place" || (resize == "auto" && can_be_resized(place));
      if (!target.empty() && was_hoped_for) one.changed += "; by a restart, as " + why_not;
      ask_to_end(one, now);
    } else if (is_within(target, there)) {
      ask_to_resize(place, now);
    } else if (has_room && held == there) {
      growing.push_back(place);
    }
  }
  for (const std::size_t place : growing) {
    JobRecord& one = record(live_[place].id);
    const Placement there = to_placement(one.nodes);
    const Placement& target = progress_[place].placement;
    free.release(there, jobs_[place].demand());
    const bool has_room = free.fits(target, jobs_[place].demand());
    free.take(has_room ? target : there, jobs_[place].demand());
    if (!has_room) continue;
    one.nodes = to_nodes(target);
    ask_to_resize(place, now);
  }
  for (const std::size_t place : waiting) {
    const Placement& target = progress_[place].placement;
    if (!free.fits(target, jobs_[place].demand())) continue;
    free.take(target, jobs_[place].demand());
    JobRecord& one = record(live_[place].id);
    one.state = JobState::kRunning;
    ++one.attempt;
    one.nodes = to_nodes(target);
    one.attempt_started = now;
    progress_[place].since = now;
    progress_[place].resumes = now + one.start_seconds();
    one.has_progress = false;
    one.is_killed = false;
    live_[place].count.reset();
    if (one.started == 0) one.started = now;
    live_[place].tried = now;
    touch(one.id);
    command(Command::Kind::kStart, one);
  }
}

Controller::Snapshot Controller::present(double now, const std::string& asked) const {
  Snapshot present{.now = now,
                   .all = topology_,
                   .topology = available_,
                   .problem = problem(),
                   .next_decision = has_changed_ ? now : std::max(now, wake_),
                   .options = options_};
  if (const JobRecord* found = find(asked)) {
    present.asked = *found;
    present.output_file = output_file(make_attempt(*found));
  }
  for (std::size_t i = 0; i < topology_.nodes.size(); ++i) present.node_states.emplace_back(node_state(i));
  for (const auto& [id, place] : places_) {
    const Progress& progress = progress_[place];
    const double done = progress.done_seconds + progress.seconds_done_since(now);
    Job job = jobs_[place];
    job.arrival = now;
    job.duration = std::max((1 - kAlmostDone) * job.duration, job.duration - done);
    present.jobs.push_back(std::move(job));
    present.standings.push_back({.target = progress.placement,
                                 .held_until = held_until(place),
                                 .cooldown = options_.cooldown(record(id).restart_cost()),
                                 .is_new = std::ranges::find(arrived_, to_number(place)) != arrived_.end(),
                                 .assumed_seconds = record(id).job.estimated_seconds > 0 ? 0 : jobs_[place].duration});
    present.records.push_back(record(id));
    present.problems.push_back(live_[place].problem);
  }
  return present;
}

}  // namespace motley::scheduling
