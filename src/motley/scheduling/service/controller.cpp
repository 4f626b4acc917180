#include "motley/scheduling/service/controller.h"

#include <algorithm>
#include <cmath>

#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/simulator/speed.h"

namespace motley::scheduling {
namespace {

constexpr double kLookSeconds = 0.05;  // between looks at attempts
constexpr double kNodeSeconds = 1;     // the longest without a look at nodes
constexpr double kStartSeconds = 2;    // after which an attempt that has not begun is started again
constexpr double kAlmostDone = 0.95;   // of what a job should take: it takes longer than was said
constexpr double kLonger = 1.5;        // then so many times as long
constexpr std::size_t kMostNames = 3;  // in a reason

int index(std::size_t place) {
  return static_cast<int>(place);
}

std::string names_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMostNames); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMostNames) text += fmt::format(" and {} more", names.size() - kMostNames);
  return text;
}

}  // namespace

Result<std::unique_ptr<Controller>> Controller::make(std::unique_ptr<Store> store, std::unique_ptr<Executor> executor,
                                                     Machines machines, std::filesystem::path folder,
                                                     ControllerOptions options) {
  std::unique_ptr<Controller> controller(new Controller);
  controller->machines_ = std::move(machines);
  controller->available_ = controller->machines_;
  controller->folder_ = std::move(folder);
  controller->options_ = std::move(options);
  MOTLEY_ASSIGN(controller->policy_, make_policy(controller->options_.policy, controller->options_.policy_options));
  MOTLEY_ASSIGN(controller->records_, store->jobs());
  MOTLEY_ASSIGN(const std::vector<std::string> drained, store->drained_nodes());
  controller->drained_.insert(drained.begin(), drained.end());
  controller->store_ = std::move(store);
  controller->executor_ = std::move(executor);
  for (std::size_t i = 0; i < controller->records_.size(); ++i) {
    const JobRecord& record = controller->records_[i];
    if (record.id != index(i) + 1) {
      return fail(ErrorCode::kCorrupt, "job {} is missing in the state", i + 1);
    }
    controller->ids_.emplace(record.job.name, record.id);
    if (!is_over(record.state)) controller->add_live(record.id);
  }
  return controller;
}

const JobRecord* Controller::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? nullptr : &record(found->second);
}

bool Controller::is_available(std::size_t server) const {
  const std::string& name = machines_.servers[server].name;
  return !drained_.contains(name) && !missing_.contains(name);
}

int Controller::free_devices() const {
  int free = 0;
  for (std::size_t i = 0; i < machines_.servers.size(); ++i) {
    if (is_available(i)) free += machines_.servers[i].devices;
  }
  for (const auto& [id, place] : places_) {
    for (const NodeShare& share : record(id).nodes) {
      const auto server = std::ranges::find(machines_.servers, share.node, &Server::name);
      if (server != machines_.servers.end() &&
          is_available(static_cast<std::size_t>(server - machines_.servers.begin()))) {
        free -= share.workers;
      }
    }
  }
  return free;
}

// --- What comes from outside

Result<std::vector<int>> Controller::submit(const std::vector<SubmittedJob>& jobs, double now) {
  std::vector<int> ids;
  std::vector<JobRecord> added;
  std::map<std::string, int> new_ids;
  for (const SubmittedJob& job : jobs) {
    MOTLEY_TRY(check(job, machines_));
    if (!job.speeds.empty() && !knows_types(options_.policy)) {
      return fail(ErrorCode::kInvalidInput, "job '{}': speeds are for {} types; accepted: none, as the policy is {}",
                  job.name, job.speeds.size(), options_.policy);
    }
    auto known = ids_.find(job.name);
    const bool is_new = known == ids_.end() && !new_ids.contains(job.name);
    if (!is_new) {
      const int id = known != ids_.end() ? known->second : new_ids.at(job.name);
      const SubmittedJob& other =
          known != ids_.end() ? record(id).job : added[static_cast<std::size_t>(id - index(records_.size()) - 1)].job;
      if (write_json(other) != write_json(job)) {
        return fail(ErrorCode::kInvalidInput, "job '{}': name is that of another job, {}; accepted: another name",
                    job.name, id);
      }
      ids.push_back(id);
      continue;
    }
    JobRecord record;
    record.id = index(records_.size() + added.size()) + 1;
    record.job = job;
    record.submitted = now;
    new_ids.emplace(job.name, record.id);
    ids.push_back(record.id);
    added.push_back(std::move(record));
  }
  std::vector<const JobRecord*> all;
  for (const JobRecord& record : added) all.push_back(&record);
  MOTLEY_TRY(store_->save(all));
  for (JobRecord& record : added) {
    ids_.emplace(record.job.name, record.id);
    records_.push_back(std::move(record));
    add_live(records_.back().id);
  }
  return ids;
}

Status Controller::cancel(const std::string& name, double now) {
  const auto found = ids_.find(name);
  if (found == ids_.end()) {
    return fail(ErrorCode::kInvalidInput, "there is no job '{}'", name);
  }
  JobRecord& one = record(found->second);
  if (is_over(one.state)) {
    return fail(ErrorCode::kInvalidInput, "job '{}' is {} already", name, to_string(one.state));
  }
  one.is_cancelled = true;
  touch(one.id);
  const std::size_t place = places_.at(one.id);
  one.changed = "cancelled by its owner";
  if (one.state == JobState::kWaiting) {
    end_job(place, JobState::kCancelled, now);
  } else {
    retarget(place, {}, now);
  }
  return save();
}

Status Controller::drain(const std::string& node, bool is_drained) {
  if (std::ranges::find(machines_.servers, node, &Server::name) == machines_.servers.end()) {
    std::vector<std::string> names;
    for (const Server& server : machines_.servers) names.push_back(server.name);
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

Attempt Controller::attempt_of(const JobRecord& record) const {
  int workers = 0;
  for (const NodeShare& share : record.nodes) workers += share.workers;
  const std::filesystem::path job = folder_ / "jobs" / record.job.name;
  return {record.id,
          record.job.name,
          record.attempt,
          command_of(record.job, workers, record.attempt, (job / "work").string()),
          record.job.directory,
          job / fmt::format("attempt-{}", record.attempt),
          record.nodes};
}

Placement Controller::placement_of(const std::vector<NodeShare>& nodes) const {
  Placement placement;
  for (const NodeShare& share : nodes) {
    const auto server = std::ranges::find(machines_.servers, share.node, &Server::name);
    if (server == machines_.servers.end()) return {};  // the cluster has been given other nodes
    placement.push_back({static_cast<int>(server - machines_.servers.begin()), share.workers});
  }
  std::ranges::sort(placement, {}, &Part::server);
  return placement;
}

bool Controller::are_available(const Placement& placement) const {
  return std::ranges::all_of(placement,
                             [&](const Part& part) { return is_available(static_cast<std::size_t>(part.server)); });
}

std::vector<NodeShare> Controller::nodes_of(const Placement& placement) const {
  std::vector<NodeShare> nodes;
  for (const Part& part : placement) {
    nodes.push_back({machines_.servers[static_cast<std::size_t>(part.server)].name, part.workers});
  }
  return nodes;
}

void Controller::add_live(int id) {
  const JobRecord& one = record(id);
  places_.emplace(id, live_.size());
  live_.push_back({id, one.attempt_started});
  jobs_.push_back(job_of(one.job, one.submitted, machines_.types));
  Progress progress;
  progress.run_seconds = one.run_seconds;
  progress.device_seconds = one.device_seconds;
  progress.done_seconds = one.done_seconds;
  progress.since = one.attempt_started;
  if (one.state == JobState::kRunning && !one.is_cancelled) {
    progress.placement = placement_of(one.nodes);
    progress.resumes = one.attempt_started + (one.attempt > 1 ? one.job.restart_seconds : 0);
    if (!progress.placement.empty()) {
      progress.speed = speed(jobs_.back(), machines_.network, ring_place(machines_, progress.placement));
    }
  }
  progress_.push_back(std::move(progress));
  arrived_.push_back(index(live_.size()) - 1);
  has_changed_ = true;
}

// Counts what a job has had and done until now, as far as its attempt runs.
void Controller::settle(std::size_t place, double now) {
  Progress& progress = progress_[place];
  if (progress.runs()) {
    const double seconds = std::max(0.0, now - progress.since);
    progress.run_seconds += seconds;
    progress.device_seconds += seconds * workers_of(progress.placement);
    progress.done_seconds += progress.speed * std::max(0.0, now - std::max(progress.since, progress.resumes));
  }
  progress.since = now;
  Job& job = jobs_[place];
  while (progress.done_seconds > kAlmostDone * job.duration) job.duration *= kLonger;
}

void Controller::retarget(std::size_t place, Placement target, double now) {
  settle(place, now);
  Progress& progress = progress_[place];
  const JobRecord& one = record(live_[place].id);
  progress.placement = std::move(target);
  progress.resumes = now + (one.attempt > 0 ? one.job.restart_seconds : 0);
  if (!progress.placement.empty()) {
    progress.speed = speed(jobs_[place], machines_.network, ring_place(machines_, progress.placement));
  }
  live_[place].changed = now;
}

void Controller::end_job(std::size_t place, JobState state, double now) {
  settle(place, now);
  JobRecord& one = record(live_[place].id);
  one.state = state;
  one.finished = now;
  one.nodes.clear();
  one.stop_by = 0;
  progress_[place].placement.clear();
  places_.erase(one.id);
  const auto arrived = std::ranges::find(arrived_, index(place));
  if (arrived != arrived_.end()) {
    arrived_.erase(arrived);  // the policy has never heard of it
  } else {
    finished_.push_back(index(place));
  }
  has_changed_ = true;
  touch(one.id);
}

Status Controller::save() {
  std::vector<const JobRecord*> records;
  for (const int id : touched_) records.push_back(&record(id));
  MOTLEY_TRY(store_->save(records));
  touched_.clear();
  return {};
}

// --- A step

Result<double> Controller::step(double now) {
  MOTLEY_TRY(look_at_nodes(now));
  MOTLEY_TRY(look_at_attempts(now));
  if (has_changed_ || now >= wake_) MOTLEY_TRY(decide(now));
  MOTLEY_TRY(reconcile(now));
  MOTLEY_TRY(save());
  const bool is_watching =
      std::ranges::any_of(places_, [&](const auto& one) { return record(one.first).state != JobState::kWaiting; });
  return std::min(wake_, now + (is_watching ? kLookSeconds : kNodeSeconds));
}

Status Controller::look_at_attempts(double now) {
  std::vector<int> ids;
  for (const auto& [id, place] : places_) {
    if (record(id).state != JobState::kWaiting) ids.push_back(id);
  }
  for (const int id : ids) {
    JobRecord& one = record(id);
    const std::size_t place = places_.at(id);
    const Attempt attempt = attempt_of(one);
    MOTLEY_ASSIGN(const AttemptStatus status, executor_->look(attempt));
    switch (status.state) {
      case AttemptStatus::State::kRunning:
        if (one.state == JobState::kStopping && live_[place].tried < 0) {
          live_[place].tried = now;  // a service that was killed may not have come to it
          MOTLEY_TRY(executor_->ask_to_end(attempt));
        }
        if (one.state == JobState::kStopping && now >= one.stop_by) {
          one.is_killed = true;
          touch(id);
          MOTLEY_TRY(executor_->kill(attempt));
        }
        break;
      case AttemptStatus::State::kUnknown:
        // A service was killed after it had said that it would be started, or it was asked to end before it began.
        if (one.state == JobState::kRunning && are_available(placement_of(one.nodes))) {
          if (now < live_[place].tried + kStartSeconds) break;
          live_[place].tried = now;
          MOTLEY_TRY(executor_->start(attempt));
        } else {
          if (one.state == JobState::kRunning) one.stop_by = now + one.job.grace_seconds;
          one.state = JobState::kStopping;
          touch(id);
          MOTLEY_TRY(executor_->ask_to_end(attempt));  // it will never begin, which the next look sees
        }
        break;
      case AttemptStatus::State::kEnded:
      case AttemptStatus::State::kLost:
        attempt_over(place, status, now);
        break;
    }
  }
  return save();
}

void Controller::attempt_over(std::size_t place, const AttemptStatus& status, double now) {
  settle(place, now);
  JobRecord& one = record(live_[place].id);
  touch(one.id);
  has_changed_ = true;
  const bool was_asked = one.state == JobState::kStopping;
  const Progress& progress = progress_[place];
  one.run_seconds = progress.run_seconds;
  one.device_seconds = progress.device_seconds;
  one.done_seconds = progress.done_seconds;
  const Placement was_on = placement_of(one.nodes);
  one.nodes.clear();
  one.stop_by = 0;
  if (status.state == AttemptStatus::State::kEnded) one.exit_code = status.exit_code;
  if (status.state == AttemptStatus::State::kEnded && status.exit_code == 0) {
    end_job(place, JobState::kDone, now);
    return;
  }
  if (one.is_cancelled) {
    end_job(place, JobState::kCancelled, now);
    return;
  }
  one.state = JobState::kWaiting;
  if (was_asked) return;  // it goes on with its target, where it has one
  const std::string how = status.state == AttemptStatus::State::kLost
                              ? std::string("its processes were lost")
                              : fmt::format("its command ended with {}", status.exit_code);
  one.changed = fmt::format("attempt {} failed: {}", one.attempt, how);
  const bool is_to_blame = !status.node_failed && are_available(was_on);
  if (is_to_blame && ++one.failures > one.job.retries) {
    end_job(place, JobState::kFailed, now);
    return;
  }
  retarget(place, {}, now);
}

Status Controller::look_at_nodes(double now) {
  MOTLEY_ASSIGN(const std::vector<std::string> missing, executor_->missing_nodes());
  const std::set<std::string> now_missing(missing.begin(), missing.end());
  if (now_missing != missing_) has_changed_ = true;
  missing_ = now_missing;
  available_ = machines_;
  for (std::size_t i = 0; i < machines_.servers.size(); ++i) {
    if (!is_available(i)) available_.servers[i].devices = 0;
  }
  for (const auto& [id, place] : places_) {
    const Placement& target = progress_[place].placement;
    const auto gone = std::ranges::find_if(
        target, [&](const Part& part) { return !is_available(static_cast<std::size_t>(part.server)); });
    if (gone == target.end()) continue;
    JobRecord& one = record(id);
    const std::string& node = machines_.servers[static_cast<std::size_t>(gone->server)].name;
    one.changed = fmt::format("leaves {}, which is {}", node, drained_.contains(node) ? "drained" : "missing");
    touch(id);
    retarget(place, {}, now);
    has_changed_ = true;
  }
  return {};
}

Status Controller::decide(double now) {
  has_changed_ = false;
  Capacity capacity(available_);
  std::vector<int> running;
  for (const auto& [id, place] : places_) {
    settle(place, now);
    const Placement& target = progress_[place].placement;
    if (target.empty()) continue;
    capacity.take(target, jobs_[place].reserve());
    running.push_back(index(place));
  }
  std::ranges::sort(running);
  const State state{now, jobs_, progress_, &available_, &capacity, arrived_, finished_, running};
  MOTLEY_ASSIGN(const Decision decision, policy_->decide(state));
  arrived_.clear();
  finished_.clear();
  wake_ = decision.wake;
  apply(decision, now);
  return {};
}

// Takes over what may change. A job that has just begun is left alone, and what no longer has room then waits for the
// next decision.
void Controller::apply(const Decision& decision, double now) {
  Capacity capacity(available_);
  std::set<int> changing;
  std::vector<std::string> stopped, started;
  for (const Change& change : decision.changes) {
    const auto place = static_cast<std::size_t>(change.job);
    const JobRecord& one = record(live_[place].id);
    const bool runs = progress_[place].runs();
    if (one.is_cancelled || (runs && now < live_[place].changed + options_.hold_restarts * one.job.restart_seconds)) {
      continue;
    }
    changing.insert(change.job);
    const int before = workers_of(progress_[place].placement);
    const int after = workers_of(change.placement);
    if (after > before) started.push_back(one.job.name);
    if (after < before) stopped.push_back(one.job.name);
  }
  for (const auto& [id, place] : places_) {
    if (!changing.contains(index(place))) capacity.take(progress_[place].placement, jobs_[place].reserve());
  }
  std::vector<std::pair<std::size_t, Placement>> targets;
  for (const Change& change : decision.changes) {
    if (!changing.contains(change.job)) continue;
    const auto place = static_cast<std::size_t>(change.job);
    const double reserve = jobs_[place].reserve();
    Placement target = change.placement;
    if (!capacity.has_room(target, reserve)) target = progress_[place].placement;
    if (!capacity.has_room(target, reserve)) target.clear();
    capacity.take(target, reserve);
    targets.emplace_back(place, std::move(target));
  }
  for (auto& [place, target] : targets) {
    Progress& progress = progress_[place];
    if (target == progress.placement) continue;
    JobRecord& one = record(live_[place].id);
    const int before = workers_of(progress.placement);
    const int after = workers_of(target);
    std::string why = before == 0  ? fmt::format("started with {} workers", after)
                      : after == 0 ? std::string("stopped")
                      : before == after
                          ? std::string("moved")
                          : fmt::format("{} from {} to {} workers", before < after ? "grown" : "shrunk", before, after);
    if (after < before && !started.empty()) why += " for " + names_of(started);
    if (after > before && before > 0 && !stopped.empty()) why += ", which " + names_of(stopped) + " gave back";
    one.changed = why;
    touch(one.id);
    retarget(place, std::move(target), now);
  }
}

// Brings attempts in line with targets: first what is to end, then what has room now.
Status Controller::reconcile(double now) {
  Capacity free(available_);
  std::vector<std::size_t> waiting;
  for (const auto& [id, place] : places_) {
    JobRecord& one = record(id);
    if (one.state == JobState::kWaiting) {
      if (!progress_[place].placement.empty()) waiting.push_back(place);
      continue;
    }
    const Placement there = placement_of(one.nodes);
    Placement held = there;
    std::erase_if(held, [&](const Part& part) { return !is_available(static_cast<std::size_t>(part.server)); });
    if (free.has_room(held, jobs_[place].reserve())) free.take(held, jobs_[place].reserve());
    if (one.state == JobState::kRunning && there != progress_[place].placement) {
      one.state = JobState::kStopping;
      one.stop_by = now + one.job.grace_seconds;
      touch(id);
      MOTLEY_TRY(save());
      MOTLEY_TRY(executor_->ask_to_end(attempt_of(one)));
    }
  }
  std::vector<int> starting;
  for (const std::size_t place : waiting) {
    const Placement& target = progress_[place].placement;
    if (!free.has_room(target, jobs_[place].reserve())) continue;
    free.take(target, jobs_[place].reserve());
    JobRecord& one = record(live_[place].id);
    one.state = JobState::kRunning;
    ++one.attempt;
    one.nodes = nodes_of(target);
    one.attempt_started = now;
    one.is_killed = false;
    if (one.started == 0) one.started = now;
    live_[place].tried = now;
    touch(one.id);
    starting.push_back(one.id);
  }
  MOTLEY_TRY(save());  // before any of them is started
  for (const int id : starting) MOTLEY_TRY(executor_->start(attempt_of(record(id))));
  return {};
}

// --- Forecasts

Controller::Present Controller::present(double now) const {
  Present present{{}, {}, available_};
  for (const auto& [id, place] : places_) {
    const Progress& progress = progress_[place];
    const double done =
        progress.done_seconds +
        (progress.runs() ? progress.speed * std::max(0.0, now - std::max(progress.since, progress.resumes)) : 0);
    Job job = jobs_[place];
    job.arrival = 0;
    job.duration = std::max((1 - kAlmostDone) * job.duration, job.duration - done);
    present.jobs.push_back(std::move(job));
    present.ids.push_back(id);
  }
  return present;
}

Result<std::vector<Forecast>> Controller::forecast(const Present& present) const {
  std::vector<Forecast> forecasts(present.jobs.size(),
                                  {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()});
  std::vector<Job> jobs;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < present.jobs.size(); ++i) {
    const int devices = most_devices(present.machines, present.jobs[i]);
    if (present.jobs[i].least() > devices) continue;  // waits until nodes come back
    jobs.push_back(present.jobs[i]);
    if (jobs.back().workers > devices) {
      jobs.back().duration *= static_cast<double>(jobs.back().workers) / devices;
      jobs.back().workers = devices;
    }
    places.push_back(i);
  }
  if (jobs.empty()) return forecasts;
  MOTLEY_ASSIGN(const auto policy, make_policy(options_.policy, options_.policy_options));
  MOTLEY_ASSIGN(const Outcome outcome, simulate(jobs, present.machines, *policy));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    forecasts[places[i]] = {outcome.jobs[i].started, outcome.jobs[i].finished};
  }
  return forecasts;
}

}  // namespace motley::scheduling
