// What the service does with its jobs, as a deterministic state machine: it takes a time and what became of attempts,
// asks a policy, and brings what runs in line with what the policy wants, step by step.
//
// A job has a target, the placement that the policy gave it last, and at most one attempt. Where they differ, the
// attempt is asked to end; once it has, and once there is room, the next one starts with the target. Whatever must not
// be forgotten is in the store before it is done, so that a controller made anew from the store goes on where another
// was killed: a job that it acknowledged is there, and no attempt is started twice.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "motley/scheduling/service/executor.h"
#include "motley/scheduling/service/store.h"
#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

struct ControllerOptions {
  std::string policy = "gadget-exact";
  PolicyOptions policy_options = {.packing = Packing::kRing, .slot_seconds = 60};
  // A job that runs is not moved, resized or stopped for others before it ran this many times its restart_seconds.
  double hold_restarts = 10;
};

// A job in a forecast: from now on, if estimates hold and nothing else comes.
struct Forecast {
  double starts = 0;    // seconds from now; infinite: never
  double finishes = 0;  // likewise
};

class Controller {
 public:
  // Takes up the jobs of the store. Errors: those of the store and of make_policy.
  static Result<std::unique_ptr<Controller>> make(std::unique_ptr<Store> store, std::unique_ptr<Executor> executor,
                                                  Machines machines, std::filesystem::path folder,
                                                  ControllerOptions options);

  // The jobs are durable when it returns their numbers; all or none. One of the same name and content as a job that is
  // there is that job, so that a client that got no answer may ask again. Errors: kInvalidInput.
  Result<std::vector<int>> submit(const std::vector<SubmittedJob>& jobs, double now);
  Status cancel(const std::string& name, double now);
  Status drain(const std::string& node, bool is_drained);

  // Looks at attempts, decides where something has changed or the policy's time has come, and starts and ends attempts.
  // `now`: seconds since 1970. Returns when to be called again at the latest, unless jobs are submitted before.
  Result<double> step(double now);

  const std::vector<JobRecord>& records() const { return records_; }
  const JobRecord* find(const std::string& name) const;
  const Machines& machines() const { return machines_; }
  bool is_available(std::size_t server) const;
  bool is_drained(const std::string& node) const { return drained_.contains(node); }
  int free_devices() const;  // of available nodes
  const std::string& policy() const { return options_.policy; }

  // The present jobs, as a trace whose times begin now, and the machines that are available.
  struct Present {
    std::vector<Job> jobs;
    std::vector<int> ids;  // of the records
    Machines machines;
  };
  Present present(double now) const;
  // What the policy would make of such a trace; by job.
  Result<std::vector<Forecast>> forecast(const Present& present) const;

 private:
  // A job that is not over, as the policy knows it: by its place in live_.
  struct Live {
    int id = 0;
    double changed = 0;    // when its target was last changed
    double tried = -1e18;  // when its attempt was last started by this controller
  };

  Controller() = default;
  JobRecord& record(int id) { return records_[static_cast<std::size_t>(id - 1)]; }
  const JobRecord& record(int id) const { return records_[static_cast<std::size_t>(id - 1)]; }
  Attempt attempt_of(const JobRecord& record) const;
  Placement placement_of(const std::vector<NodeShare>& nodes) const;
  bool are_available(const Placement& placement) const;
  std::vector<NodeShare> nodes_of(const Placement& placement) const;
  void add_live(int id);
  void settle(std::size_t place, double now);
  void retarget(std::size_t place, Placement target, double now);
  Status look_at_attempts(double now);
  void attempt_over(std::size_t place, const AttemptStatus& status, double now);
  void end_job(std::size_t place, JobState state, double now);
  Status look_at_nodes(double now);
  Status decide(double now);
  void apply(const Decision& decision, double now);
  Status reconcile(double now);
  Status save();
  void touch(int id) { touched_.insert(id); }

  std::unique_ptr<Store> store_;
  std::unique_ptr<Executor> executor_;
  Machines machines_;   // all of them
  Machines available_;  // the same, without devices of nodes that are drained or missing
  std::filesystem::path folder_;
  ControllerOptions options_;
  std::unique_ptr<Policy> policy_;
  std::vector<JobRecord> records_;       // by id
  std::map<std::string, int> ids_;       // by name
  std::vector<Live> live_;               // by arrival
  std::map<int, std::size_t> places_;    // in live_, by id; of jobs that are not over
  std::vector<Job> jobs_;                // of live_
  std::vector<Progress> progress_;       // likewise; placements are targets
  std::vector<int> arrived_, finished_;  // places, since the last decision
  std::set<std::string> drained_, missing_;
  std::set<int> touched_;  // ids of records that the store does not have as they are
  bool has_changed_ = true;
  double wake_ = 0;
};

}  // namespace motley::scheduling
