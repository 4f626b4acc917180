// A job as its owner submits it: a command that trains, and what a scheduler must know of it. JSON, with the fields
// below by their names.
#pragma once

#include <string>
#include <vector>

#include "motley/scheduling/trace/cluster_topology.h"
#include "motley/scheduling/trace/job.h"
#include "motley/serial/json_fields.h"
#include "motley/serial/options.h"

namespace motley::scheduling {

struct SubmittedJob {
  std::string name;  // unique
  // In its words {workers}, {attempt}, {folder} and {resume} stand for the number of workers, how often it has been
  // started, its own folder that stays from attempt to attempt, and "--resume" from the second attempt on (nothing
  // before). At SIGTERM it is to save what it has done and end; it ends with 0 only once all is done.
  std::vector<std::string> command;
  std::string directory;             // where it runs
  int workers = 1;                   // that it asks for
  int min_workers = 0;               // with which it can run; 0: what it asks for
  int max_workers = 0;               // that it can use; 0: what it asks for
  double estimated_seconds = 3600;   // that it is expected to take with the workers it asks for
  double compute_seconds = 1;        // of an iteration, and
  double gradient_bytes = 0;         // what it sends around its ring (motley/scheduling/trace/job.h)
  double restart_cost_seconds = 10;  // in which it trains nothing, whenever its workers change
  double grace_seconds = 30;         // from SIGTERM to SIGKILL
  double weight = 1;                 // of its utility
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
  int max_retries = 0;  // how often it is started again after it failed by itself

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
  archive.required("speed", speed.speed, NumberIs::kPositive);
}

template <class Archive>
void fields(Archive& archive, SubmittedJob& job) {
  archive.required("name", job.name);
  archive.required("command", job.command);
  archive.required("directory", job.directory);
  archive.required("workers", job.workers);
  archive.optional("min_workers", job.min_workers);
  archive.optional("max_workers", job.max_workers);
  archive.required("estimated_duration", job.estimated_seconds, NumberIs::kPositive);
  archive.optional("compute_seconds", job.compute_seconds, NumberIs::kPositive);
  archive.optional("gradient_bytes", job.gradient_bytes);
  archive.required("restart_cost", job.restart_cost_seconds);
  archive.required("grace_period", job.grace_seconds);
  archive.optional("weight", job.weight, NumberIs::kPositive);
  archive.optional("utility", job.utility);
  archive.optional("device_hour_cost", job.device_hour_cost);
  archive.optional("speeds", job.speeds);
  archive.optional("max_retries", job.max_retries);
}

// Errors: kInvalidInput with field, value and what would be accepted, also for a job that could never run on these
// machines, all of them free.
Status check(const SubmittedJob& job, const ClusterTopology& topology);

// As policies see it on machines with these types of devices: `arrival` in seconds of whatever clock.
Job make_job(const SubmittedJob& job, double arrival, const std::vector<std::string>& types);

// The command with its placeholders filled in.
std::vector<std::string> make_command(const SubmittedJob& job, int workers, int attempt, const std::string& folder);

}  // namespace motley::scheduling
