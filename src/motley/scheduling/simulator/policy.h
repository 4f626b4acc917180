// What decides which jobs run where: one interface for all policies. Policies are pure: they see a state and return
// what changes; the same calls give the same answers.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/scheduling/simulator/placement.h"
#include "motley/scheduling/trace/job.h"

namespace motley::scheduling {

// What has become of a job up to the time `since`.
struct Progress {
  Placement placement;        // empty: it does not run
  double speed = 1;           // seconds of its duration in a second, while it runs
  double resumes = 0;         // when it trains again, after its workers were changed
  double run_seconds = 0;     // in which it had workers
  double device_seconds = 0;  // the same times these workers
  double done_seconds = 0;    // of its duration
  double since = 0;

  bool runs() const { return !placement.empty(); }
  // Of its duration, from `since` until now.
  double seconds_done_since(double now) const {
    return runs() ? speed * std::max(0.0, now - std::max(since, resumes)) : 0;
  }
  // It has its workers, and has not trained with them yet.
  bool is_restarting(double now) const { return runs() && now <= resumes; }
  // Counts what it has had and done until now.
  void settle(double now) {
    if (runs()) {
      const double seconds = std::max(0.0, now - since);
      run_seconds += seconds;
      device_seconds += seconds * count_workers(placement);
      done_seconds += seconds_done_since(now);
    }
    since = now;
  }
};

// The cluster at one moment. Jobs are named by their index in `jobs`.
struct State {
  double now = 0;  // seconds
  std::span<const Job> jobs;
  std::span<const Progress> progress;  // of each job
  const ClusterTopology* topology = nullptr;
  const Capacity* capacity = nullptr;
  std::span<const int> arrived;      // since the decision before, in their order; to a live policy they may run already
  std::span<const int> finished;     // likewise; they have no placement any more
  std::span<const int> running;      // by arrival
  std::span<const int> active;       // that have arrived and not finished, by arrival
  std::span<const int> failed = {};  // since the decision before: lost their places with a node

  const Job& job(int number) const { return jobs[index(number)]; }
  const Placement& placement(int number) const { return progress[index(number)].placement; }
  // Up to now.
  double run_seconds(int number) const {
    const Progress& one = progress[index(number)];
    return one.run_seconds + (one.runs() ? now - one.since : 0);
  }
  double device_seconds(int number) const {
    const Progress& one = progress[index(number)];
    return one.device_seconds + (one.runs() ? (now - one.since) * count_workers(one.placement) : 0);
  }
  double done_seconds(int number) const {
    const Progress& one = progress[index(number)];
    return one.done_seconds + one.seconds_done_since(now);
  }
  double left_seconds(int number) const { return job(number).duration - done_seconds(number); }
};

struct Change {
  int job = 0;
  Placement placement;  // from now on; empty: it stops
};

struct Decision {
  // All jobs whose placement becomes another. Together they fit, once what stops or moves has given back its devices.
  std::vector<Change> changes;
  // When to be asked again, though nothing arrives or finishes before; must be later than now.
  double wake = std::numeric_limits<double>::infinity();
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string name() const = 0;
  // Called at every arrival and completion, and when nodes fail and come back, once for all of an instant, and at the
  // time that the decision before asked for. Errors: kInternal where a program that it solves cannot be solved;
  // kInvalidInput where it does not know of heterogeneous devices or failures, and there are such.
  virtual Result<Decision> decide(const State& state) = 0;
};

// What policies that weigh jobs aim at: the jobs' own utilities; short times from arrival to completion; all being done
// soon; nobody being behind an equal part of the cluster.
enum class Objective { kUtility, kCompletion, kMakespan, kFairness };

struct PolicyOptions {
  PlacementStrategy placement = PlacementStrategy::kAny;  // of policies that do not look for places of their own
  double slot_seconds = 3600;                             // of policies that decide by slots
  bool at_events = false;  // those decide at every event too, and a slot begins with each decision
  Objective objective = Objective::kUtility;
};

}  // namespace motley::scheduling
