// Replays a trace under a policy, event by event: jobs arrive, start, grow, shrink, move, stop and finish, nodes fail
// and come back; nothing happens in between.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

// What became of a job.
struct JobOutcome {
  double started = std::numeric_limits<double>::infinity();   // first, seconds from the trace's begin; never: infinite
  double finished = std::numeric_limits<double>::infinity();  // likewise
  double done_seconds = 0;                                    // of its duration
  int restarts = 0;  // how often it ran again after it had been stopped, or was moved, or got other workers
  int failures = 0;  // how often a node failed on which it ran
};

// A job's workers in one place, for a while.
struct Run {
  int job = 0;
  double begin = 0, end = 0;  // seconds from the trace's begin
  Placement placement;
};

struct Outcome {
  std::vector<JobOutcome> jobs;    // as the trace's
  std::vector<Run> runs;           // by their ends; only where they are asked for
  double begin = 0;                // of the first arrival
  double end = 0;                  // of the last completion, or the horizon
  double device_seconds = 0;       // that jobs had
  double utilisation = 0;          // of all devices from begin to end
  double lost_device_seconds = 0;  // of those: what jobs had done since their last checkpoints when nodes failed
  double utility = 0;              // of all jobs, for what they did, less what their devices cost
  std::int64_t decisions = 0;
  double decision_seconds = 0;  // of computation, all together
  double longest_decision_seconds = 0;
};

struct PolicyOutcome {
  std::string policy;
  Outcome outcome;
};

// Servers that fail at random, each on its own: the time from one's coming back to its next failure is exponentially
// distributed.
struct Failures {
  double mtbf_seconds = std::numeric_limits<double>::infinity();  // of that time; infinite: none fails
  double mttr_seconds = 3600;                                     // until it comes back
  double checkpoint_interval_seconds =
      1800;  // that a job trains between checkpoints; what it did since the last one is lost
  std::uint64_t seed = 0;
};

struct SimulationOptions {
  bool keep_runs = false;
  double horizon = std::numeric_limits<double>::infinity();  // when all ends, whatever is left to do
  const Clock* clock = &SteadyClock::instance();             // only tells what decisions take
  Failures failures = {};
  double duration_error = 1;  // policies are told durations that are wrong by up to so many times, either way
  std::uint64_t duration_seed = 0;
  // Above 0, policies are told no durations, but that a job has as long to go as it has done, and so long at least.
  double hidden_duration_seconds = 0;
  bool hide_speeds = false;  // of jobs with measured speeds, policies know what their training so far has shown
  // Then also what that of other jobs of the same application has, ended ones among them.
  bool applications_share_speeds = false;
  bool first_start_costs = false;  // what a restart does
  std::stop_token stop = {};
  std::optional<Deadline> deadline = {};  // of the computation; nothing: it takes as long as it takes
};

// With hidden speeds a policy knows of a job what MeasuredSpeeds::known_after says. Where durations are told wrongly,
// the logarithm of the error is even, and a job that has done all that was told has, from then on, twice as much as it
// has done.
//
// Jobs by arrival. At one instant completions come first, then failures, then arrivals, then one decision.
//
// Errors: kInvalidInput for a job that asks for more devices than it can have, and where jobs do nothing but restart,
// by name; kInternal where the policy breaks its word: gives devices or bandwidth of uplinks twice, more workers than a
// job can use or fewer than it can run with, devices on which it cannot run, changes a job that is not there, wants to
// be woken in the past, or leaves jobs waiting for ever (which it may where devices cost more than the utility of the
// jobs: then all ends); kInterrupted after a stop; kTimeout after the deadline.
Result<Outcome> simulate(const std::vector<Job>& jobs, const ClusterTopology& topology, Policy& policy,
                         const SimulationOptions& options = {});

// Seconds from arrival to completion, over all jobs that finished.
struct Completion {
  double mean = 0;
  double median = 0;
  double p99 = 0;
};
Completion compute_completion(const std::vector<Job>& jobs, const Outcome& outcome);

// Finish-time fairness (Themis, Mahajan et al., NSDI 2020): how much longer a job took than it would have with a part
// of the cluster of its own, as large as there were jobs, on average, while it was there. Jobs above 1 had less than
// their part. Over all jobs that finished.
struct Fairness {
  double mean = 0;
  double worst = 0;
  double unfair = 0;  // share of jobs above 1
};
Fairness compute_fairness(const std::vector<Job>& jobs, const ClusterTopology& topology, const Outcome& outcome);

}  // namespace motley::scheduling
