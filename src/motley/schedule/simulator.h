// Replays a trace under a policy, event by event: jobs arrive, start, stop and finish; nothing happens in between.
#pragma once

#include <vector>

#include "motley/base/clock.h"
#include "motley/base/result.h"
#include "motley/schedule/policy.h"

namespace motley::schedule {

// What became of a job.
struct JobOutcome {
  double started = 0;   // first, seconds from the trace's begin
  double finished = 0;  // likewise
  int restarts = 0;     // how often it ran again after it had been stopped, or was moved
};

struct Outcome {
  std::vector<JobOutcome> jobs;  // as the trace's
  double begin = 0;              // of the first arrival
  double end = 0;                // of the last completion
  double device_seconds = 0;     // that jobs had
  double busy_share = 0;         // of all devices from begin to end
  std::int64_t decisions = 0;
  double decision_seconds = 0;  // of computation, all together
  double longest_decision_seconds = 0;
};

// Jobs by arrival. At one instant completions come first, then arrivals, then one decision.
//
// Errors: kInvalidInput for a job that asks for more devices than there are, by name; kInternal where the policy breaks
// its word: gives devices twice, changes a job that is not there, wants to be woken in the past, or leaves jobs waiting
// for ever.
// The clock only tells what decisions take.
Result<Outcome> simulate(const std::vector<Job>& jobs, const Machines& machines, Policy& policy,
                         const Clock& clock = SteadyClock::instance());

// Seconds from arrival to completion, over all jobs.
struct Completion {
  double mean = 0;
  double median = 0;
  double p99 = 0;
};
Completion completion_of(const std::vector<Job>& jobs, const Outcome& outcome);

}  // namespace motley::schedule
