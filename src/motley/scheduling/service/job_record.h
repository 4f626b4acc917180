// A live job: as its owner submits it, a command that trains and what a scheduler must know of it, and what the service
// knows of it, all of it durable. JSON, with the fields below by their names.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"
#include "motley/serial/json_fields.h"
#include "motley/serial/options.h"

namespace motley::scheduling {

// Of all clients that are known by the token alone.
inline constexpr const char* kDefaultTenant = "default";
// Of a job that does not say how long it takes.
inline constexpr double kAssumedSeconds = 3600;
// Of a job beside other devices or numbers of workers.
inline constexpr double kLeastSpeed = 1e-9, kMostSpeed = 1e9;

struct SubmittedJob {
  std::string name;  // that of no job that is not over
  // In its words {workers}, {attempt}, {folder} and {resume} stand for the number of workers, how often it has been
  // started, its own folder that stays from attempt to attempt, and "--resume" from the second attempt on (nothing
  // before). At SIGTERM it is to save what it has done and end; it ends with 0 only once all is done.
  std::vector<std::string> command;
  std::string directory;               // where it runs
  int workers = 1;                     // that it asks for
  int min_workers = 0;                 // with which it can run; 0: what it asks for
  int max_workers = 0;                 // that it can use; 0: what it asks for
  double estimated_seconds = 0;        // that it is expected to take with the workers it asks for; 0: not known
  double compute_seconds = 1;          // of an iteration, and
  double gradient_bytes = 0;           // what it sends around its ring (motley/scheduling/trace/job.h)
  double cpus_per_worker = 0;          // that each of its workers takes of its node, beside its device
  double memory_bytes_per_worker = 0;  // likewise
  double restart_cost_seconds = 10;    // in which it trains nothing, whenever its workers change
  double grace_seconds = 30;           // from SIGTERM to SIGKILL
  double weight = 1;                   // of its utility
  // The utility of its progress, in seconds of its own with the workers it asks for; its weight is the one above.
  Utility utility = {};
  double device_hour_cost = 0;  // what an hour of one of its devices costs, in the unit of its utility
  // How fast it computes by type of device, beside the devices for which its seconds hold; where it is not given for a
  // type, it cannot run there. None: it is as fast on all, and may be on several at a time.
  struct Speed {
    std::string type;
    double speed = 1;
    bool operator==(const Speed&) const = default;
  };
  std::vector<Speed> speeds = {};
  // How many times as fast it is with more workers than one. None: as compute_seconds and gradient_bytes say where its
  // command has {workers} or MOTLEY_WORKERS in it; else more workers are of no use to it.
  std::vector<Elastic::SpeedUp> speedup = {};
  int max_retries = 0;  // how often it is started again after it failed by itself
  // Where its number of workers changes, "restart", or "in-place" where its launcher and its nodes allow that; "auto"
  // is so, too, but for what `motley schedule submit --train` has the launcher allow.
  std::string resize = "auto";
  // Tells this submission from others: a job of the same name, content and submission is the same one. Empty: one of
  // the same name and content is.
  std::string submission = {};

  static const OptionTable<SubmittedJob>& options();  // those that are one value each
};

template <class Archive>
void fields(Archive& archive, Utility::Point& point) {
  archive.required("iterations", point.iterations);
  archive.required("utility", point.utility);
}

template <class Archive>
void fields(Archive& archive, Utility& utility) {
  archive.required("shape", utility.shape);
  archive.optional("steepness", utility.steepness, NumberIs::kPositive);
  archive.optional("middle", utility.middle);
  archive.optional("points", utility.points);
}

template <class Archive>
void fields(Archive& archive, SubmittedJob::Speed& speed) {
  archive.required("type", speed.type);
  archive.required("speed", speed.speed, NumberIs::between(kLeastSpeed, kMostSpeed));
}

template <class Archive>
void fields(Archive& archive, Elastic::SpeedUp& one) {
  archive.required("workers", one.workers, NumberIs::between(2, 1e6));
  archive.required("speedup", one.speedup, NumberIs::between(kLeastSpeed, kMostSpeed));
}

template <class Archive>
void fields(Archive& archive, SubmittedJob& job) {
  archive.required("name", job.name);
  archive.required("command", job.command);
  archive.required("directory", job.directory);
  archive.required("workers", job.workers);
  archive.optional("min_workers", job.min_workers);
  archive.optional("max_workers", job.max_workers);
  archive.optional("estimated_duration", job.estimated_seconds, NumberIs::kPositive);
  archive.optional("compute_seconds", job.compute_seconds, NumberIs::kPositive);
  archive.optional("gradient_bytes", job.gradient_bytes);
  archive.optional("cpus_per_worker", job.cpus_per_worker);
  archive.optional("memory_bytes_per_worker", job.memory_bytes_per_worker);
  archive.required("restart_cost", job.restart_cost_seconds);
  archive.required("grace_period", job.grace_seconds);
  archive.optional("weight", job.weight, NumberIs::kPositive);
  archive.optional("utility", job.utility);
  archive.optional("device_hour_cost", job.device_hour_cost);
  archive.optional("speeds", job.speeds);
  archive.optional("max_retries", job.max_retries);
  archive.optional("resize", job.resize);
  archive.optional("speedup", job.speedup);
  archive.optional("submission", job.submission);
}

// Errors: kInvalidInput with field, value and what would be accepted, also for a job that could never run on these
// machines, all of them free.
Status check(const SubmittedJob& job, const ClusterTopology& topology);

// The body of POST /v1/jobs: a job, or {"jobs": [...]}. What a job says is not checked beyond its fields.
Result<std::vector<SubmittedJob>> parse_submitted_jobs(std::string_view body);

// Whether a job is faster with more workers: it says so, or its command can tell how many it has.
bool scales(const SubmittedJob& job);

// What each of its workers takes of a resource of its node in this cluster.
double requested(const SubmittedJob& job, std::string_view resource, const ClusterTopology& topology);

// As policies see it, which take a job of unknown duration for one of kAssumedSeconds, on machines with these types of
// devices and these resources: `arrival` in seconds of whatever clock.
Job make_job(const SubmittedJob& job, double arrival, const ClusterTopology& topology);

// The command with its placeholders filled in.
std::vector<std::string> make_command(const SubmittedJob& job, int workers, int attempt, const std::string& folder);

// --- What the service knows

// kStopping: asked to save its work and end, for another number of workers, another place, or because it is cancelled.
enum class JobState { kPending, kRunning, kStopping, kCompleted, kFailed, kCancelled };
inline const char* to_string(JobState state) {
  constexpr std::array kNames = {"pending", "running", "stopping", "completed", "failed", "cancelled"};
  return kNames[static_cast<std::size_t>(state)];
}
inline std::vector<JobState> every_value(JobState) {
  return {JobState::kPending,   JobState::kRunning, JobState::kStopping,
          JobState::kCompleted, JobState::kFailed,  JobState::kCancelled};
}
inline bool is_over(JobState state) {
  return state == JobState::kCompleted || state == JobState::kFailed || state == JobState::kCancelled;
}

struct NodeAllocation {
  std::string node;
  int workers = 0;
  bool operator==(const NodeAllocation&) const = default;
};

template <class Archive>
void fields(Archive& archive, NodeAllocation& allocation) {
  archive.required("node", allocation.node);
  archive.required("workers", allocation.workers);
}

inline int count_workers(const std::vector<NodeAllocation>& nodes) {
  int workers = 0;
  for (const NodeAllocation& allocation : nodes) workers += allocation.workers;
  return workers;
}

// "n0:2 n1:1"
inline std::string describe(const std::vector<NodeAllocation>& nodes, const char* between = " ") {
  std::string text;
  for (const NodeAllocation& one : nodes)
    text += fmt::format("{}{}:{}", text.empty() ? "" : between, one.node, one.workers);
  return text;
}

// What an attempt is asked to go on with, in place.
struct Resizing {
  // None: nothing. The record's `nodes` are then its own until it has answered: what it had, or what it is to have,
  // whichever is more.
  std::vector<NodeAllocation> to = {};
  int number = 0;    // how often the job was asked so
  double asked = 0;  // when it was last
};

// Times are seconds since 1970; 0: not yet.
struct JobRecord {
  int id = 0;                           // from 1, in the order of submission
  std::string tenant = kDefaultTenant;  // whose it is
  SubmittedJob job;
  JobState state = JobState::kPending;
  double submitted = 0;
  double started = 0;  // first
  double finished = 0;
  int attempt = 0;                    // how often it has been started
  std::vector<NodeAllocation> nodes;  // of the attempt that runs
  double attempt_started = 0;         // likewise
  double stop_by = 0;                 // when the attempt is killed, once it was asked to end
  bool is_killed = false;             // it was
  bool is_cancelled = false;          // its owner wants no more of it
  double run_seconds = 0;             // of the attempts before, and of the one that runs until `resizing.asked`
  double device_seconds = 0;          // likewise
  double done_seconds = 0;            // of what it takes, as estimated, likewise
  int failures = 0;
  int exit_code = 0;    // of the last attempt that ended by itself
  std::string changed;  // why it was last started, resized, moved or stopped
  Resizing resizing;
  double stop_seconds = 0;                      // that the attempt before took to end, once it was asked
  bool has_progress = false;                    // the attempt has said that it has done a step
  std::optional<double> measured_restart_cost;  // seconds; each new measurement counts as much as all before

  // By its name, or its number.
  bool is_named(const std::string& name) const { return job.name == name || fmt::format("{}", id) == name; }
  // What it is expected to lose when its workers change.
  double restart_cost() const { return measured_restart_cost.value_or(job.restart_cost_seconds); }
  // Of that, from when the attempt is started: the one before has taken its time to end already.
  double start_seconds() const { return attempt > 1 ? std::max(0.0, restart_cost() - stop_seconds) : 0; }
};

template <class Archive>
void fields(Archive& archive, JobRecord& record) {
  archive.required("id", record.id);
  archive.optional("tenant", record.tenant);
  archive.required("job", record.job);
  archive.required("state", record.state);
  archive.required("submitted", record.submitted);
  archive.optional("started", record.started);
  archive.optional("finished", record.finished);
  archive.optional("attempt", record.attempt);
  archive.optional("nodes", record.nodes);
  archive.optional("attempt_started", record.attempt_started);
  archive.optional("stop_by", record.stop_by);
  archive.optional("is_killed", record.is_killed);
  archive.optional("is_cancelled", record.is_cancelled);
  archive.optional("run_seconds", record.run_seconds);
  archive.optional("device_seconds", record.device_seconds);
  archive.optional("done_seconds", record.done_seconds);
  archive.optional("failures", record.failures);
  archive.optional("exit_code", record.exit_code);
  archive.optional("last_change", record.changed);
  archive.optional("resizing_to", record.resizing.to);
  archive.optional("resizes", record.resizing.number);
  archive.optional("resize_asked", record.resizing.asked);
  archive.optional("stop_seconds", record.stop_seconds);
  archive.optional("has_progress", record.has_progress);
  archive.optional("measured_restart_cost", record.measured_restart_cost);
}

}  // namespace motley::scheduling
