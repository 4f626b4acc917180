// What decides which jobs run where: one interface, one file a policy. Policies are pure: they see a state and return
// what changes; the same calls give the same answers.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "motley/base/result.h"
#include "motley/schedule/job.h"
#include "motley/schedule/machines.h"

namespace motley::schedule {

// What has become of a job so far.
struct Progress {
  Placement placement;        // empty: it does not run
  double run_seconds = 0;     // in which it had its workers, up to `since`
  double device_seconds = 0;  // the same times these workers
  double since = 0;           // from when on it has its placement

  bool runs() const { return !placement.empty(); }
};

// The cluster at one moment. Jobs are named by their index in `jobs`.
struct State {
  double now = 0;  // seconds
  std::span<const Job> jobs;
  std::span<const Progress> progress;  // of each job
  const Machines* machines = nullptr;
  const Occupancy* occupancy = nullptr;
  std::span<const int> arrived;   // since the decision before, in their order
  std::span<const int> finished;  // likewise; they have no placement any more
  std::span<const int> running;   // by arrival

  double run_seconds(int job) const;     // up to now
  double device_seconds(int job) const;  // up to now
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
  // Called at every arrival and completion, once for all of an instant, and at the time that the decision before asked
  // for.
  virtual Decision decide(const State& state) = 0;
};

// How a job's workers are put on servers: kAnywhere takes the servers in their order, as many devices of each as are
// free; kTogether never splits a job that fits on one server, and gives a larger one whole idle servers and one for
// what is left over.
enum class Packing { kAnywhere, kTogether };

// Where a job of so many workers goes; empty where it does not fit now. kTogether takes the first server with room, and
// for larger jobs the first idle ones, each filled (servers of unlike sizes: the largest first).
Placement place(const Machines& machines, const Occupancy& occupancy, int workers, Packing packing);

struct PolicyOptions {
  Packing packing = Packing::kAnywhere;
};
// The names that make_policy knows.
std::vector<std::string> policy_names();
// Errors: kInvalidInput for another name.
Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const PolicyOptions& options = {});

}  // namespace motley::schedule
