// What the service knows of a job, all of it durable.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "motley/scheduling/service/submitted_job.h"

namespace motley::scheduling {

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

// Times are seconds since 1970; 0: not yet.
struct JobRecord {
  int id = 0;  // from 1, in the order of submission
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
  double run_seconds = 0;             // of the attempts before
  double device_seconds = 0;          // likewise
  double done_seconds = 0;            // of what it takes, as estimated, likewise
  int failures = 0;
  int exit_code = 0;    // of the last attempt that ended by itself
  std::string changed;  // why it was last started, resized, moved or stopped
};

template <class Archive>
void fields(Archive& archive, JobRecord& record) {
  archive.required("id", record.id);
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
}

}  // namespace motley::scheduling
