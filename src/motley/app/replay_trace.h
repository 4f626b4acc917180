// What `motley schedule simulate` does: replays a trace of jobs on a cluster under policies.
#pragma once

#include <limits>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/app/schedule_request.h"
#include "motley/base/statistics.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::app {

struct TraceQuestion {
  std::string trace;  // a file, or the name of a workload that a paper describes
  std::string throughputs;
  std::string device_type = scheduling::TraceOptions().device_type;
  ClusterRequest topology;
  std::vector<std::string> policies;  // none: those that suit any trace
  std::string placement = "any";
  std::string objective = "utility";
  double slot_seconds = 0;  // 0: the workload's own
  std::string decide_at = "slots";
  double duration_error = 1;   // times
  double load = 0;             // 0: as recorded
  double busiest_seconds = 0;  // 0: all
  double mtbf = 0;             // seconds; 0: none fails
  double mttr = scheduling::Failures().mttr_seconds;
  double checkpoint_interval = scheduling::Failures().checkpoint_interval_seconds;
  bool elastic = false;
  std::uint64_t seed = 0;
  std::stop_token stop;

  static const OptionTable<TraceQuestion>& options();  // but for the trace and the stop
};

// What is replayed, changed as the question asks for.
struct Workload {
  std::string name;
  std::vector<scheduling::Job> jobs;
  scheduling::ClusterTopology topology;
  double horizon = std::numeric_limits<double>::infinity();
  double slot_seconds = scheduling::PolicyOptions().slot_seconds;
  bool is_drawn = false;  // another seed gives another one
  std::uint64_t seed = 0;

  std::string format_jobs() const { return scheduling::format_trace(jobs, topology.types, topology.resources); }
};

// Over several seeds.
struct PolicyEstimates {
  std::string policy;
  Estimate mean_hours, makespan_hours, worst, percent_of_bound;
};

// Reads files once. The question must outlive it. Errors name the flag.
class TraceReplay {
 public:
  explicit TraceReplay(const TraceQuestion& question);

  const std::vector<std::string>& policies() const { return policies_; }
  Result<Workload> make_workload(std::uint64_t seed);
  // Under each of the policies. With `keep_runs` the outcomes have what a page draws.
  Result<std::vector<scheduling::PolicyOutcome>> replay(const Workload& workload, bool keep_runs) const;
  // With so many seeds, from the question's on, of workloads in which something is random.
  Result<std::vector<PolicyEstimates>> repeat(int repetitions);

 private:
  Result<scheduling::Outcome> replay(const Workload& workload, const std::string& policy, bool keep_runs) const;
  Result<std::optional<Workload>> draw(std::uint64_t seed) const;
  Result<Workload> read() const;

  const TraceQuestion& question_;
  std::vector<std::string> policies_;
  std::optional<scheduling::Throughputs> throughputs_;
  std::optional<Workload> recording_;
};

// For programs: the figures of each policy, and a line a policy and job.
std::string to_json(const Workload& workload, const std::vector<scheduling::PolicyOutcome>& outcomes);
// The JSON Schema of the first, for docs/schema.
std::string replay_schema();
std::string to_csv(const Workload& workload, const std::vector<scheduling::PolicyOutcome>& outcomes);

}  // namespace motley::app
