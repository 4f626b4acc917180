// What the service does with its jobs, as a deterministic state machine: it takes a time and what became of attempts,
// asks a policy, and answers with commands that bring what runs in line with what the policy wants, step by step. It
// starts and ends nothing itself: who drives it carries its commands out.
//
// Its records are in a store before anybody acts on them, so that a controller made anew from the store goes on where
// another was killed: a job that was acknowledged is there, and no attempt is started twice. Where the store fails, as
// on a full disk, nothing is commanded until it works again; where the policy fails, a new one is asked soon.
//
// A job has a target, the placement that the policy gave it last, and at most one attempt. Where they differ, the
// attempt is asked to end; once it has, and once there is room, the next one starts with the target. Or, where the job,
// its launcher and its nodes allow that, the attempt is asked to go on with the target, in place: it keeps what it had
// until it has answered, and gets what it is to have, for which there must be room, before it is asked. One that
// refuses, or does not answer in the time that a restart should take, is asked to end.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/scheduling/service/executor.h"
#include "motley/scheduling/service/store.h"
#include "motley/scheduling/simulator/policy.h"

namespace motley::scheduling {

struct ControllerOptions {
  std::string policy = "gadget-exact";
  PolicyOptions policy_options = {.placement = PlacementStrategy::kCompact, .slot_seconds = 60};
  // A job that runs is not moved, resized or stopped for others before it ran this many times its restart cost.
  double preemption_cooldown = 10;
  std::optional<double> preemption_cooldown_seconds = {};  // this long instead
  int max_jobs_per_tenant = 10'000;                        // that are not over

  double cooldown(double restart_cost) const {
    return preemption_cooldown_seconds.value_or(preemption_cooldown * restart_cost);
  }
};

class Controller {
 public:
  // Takes up jobs and drained nodes as the store has them. Attempts have their folders below `folder`. Errors: those of
  // the store and of make_policy; kCorrupt where a job is missing.
  static Result<Controller> make(std::unique_ptr<Store> store, ClusterTopology topology, std::filesystem::path folder,
                                 ControllerOptions options);

  // What these have changed is durable when they return. Errors: kInvalidInput, and those of the store.
  //
  // The numbers of the jobs. One of the same tenant, name, content and submission as a job that is there is that job,
  // so that a client that got no answer may ask again; while that is not over, whatever the submission. A name can be
  // used again once the job that has it is over. kTooMany where the tenant would have more jobs than one may.
  Result<std::vector<int>> submit(const std::vector<SubmittedJob>& jobs, double now,
                                  const std::string& tenant = kDefaultTenant);
  Status cancel(const std::string& name, double now);
  Status drain(const std::string& node, bool is_drained);

  // The attempts of which the next step wants to know what became.
  std::vector<Attempt> watched() const;
  // Takes in what has been seen, decides where something has changed or the policy's time has come, and says which
  // attempts to start and to end. `now`: seconds since 1970.
  struct Step {
    std::vector<Command> commands;
    double wake = 0;  // when to be called again at the latest, unless something comes from outside before
  };
  Step step(double now, const Observation& seen);
  // Why nothing new is done at the moment: the store or the policy failed in the last step. Empty: nothing did.
  std::string problem() const { return !store_problem_.empty() ? store_problem_ : policy_problem_; }

  const std::vector<JobRecord>& records() const { return records_; }
  // By its name, which is that of the one submitted last, or else by its number.
  const JobRecord* find(const std::string& name) const;
  const ClusterTopology& topology() const { return topology_; }
  // The job's latest attempt, whose number is 0 where it was never started.
  Attempt make_attempt(const JobRecord& record) const;
  bool is_available(std::size_t node) const;
  const char* node_state(std::size_t node) const;  // "drained", "up" or "down"
  // CPUs and memory of a node, where it has a limit: how much there is, and how much jobs there have requested.
  struct NodeResource {
    std::string name;
    double total = 0, used = 0;
  };
  std::vector<NodeResource> resources(std::size_t node) const;
  const std::string& policy() const { return options_.policy; }

  // What of a job a forecast begins with.
  struct Standing {
    Placement target = {};       // what the policy gave it last
    double held_until = 0;       // before then its workers are not changed
    double cooldown = 0;         // seconds that they stay as they are, once they have changed
    bool is_new = true;          // the policy has not heard of it
    double assumed_seconds = 0;  // that it is taken to take; 0: it says how long it takes
  };
  // What explanations and forecasts are computed from, copied, as they take long.
  struct Snapshot {
    double now = 0;
    std::vector<Job> jobs;              // those that are not over, as a trace of what is left of them, which begins now
    std::vector<Standing> standings;    // of the same jobs
    std::vector<JobRecord> records;     // likewise
    std::vector<std::string> problems;  // that executors have with their attempts; empty: none
    std::optional<JobRecord> asked;     // of the job that was asked for, over or not; none: there is no such job
    std::filesystem::path output_file;  // of that job
    ClusterTopology all, topology;      // in the second one, nodes that are not available have no devices
    std::vector<std::string> node_states;
    std::string problem;       // as problem()
    double next_decision = 0;  // of the policy, where no job comes or ends before; infinite: at the next that does
    ControllerOptions options;
  };
  Snapshot present(double now, const std::string& asked = "") const;

 private:
  // A job that is not over, as the policy knows it: by its place in live_.
  struct Live {
    int id = 0;
    double changed = 0;         // when its target was last changed
    double tried = kNever;      // when its attempt was last started, resized or asked to end by this controller
    bool is_unasked = false;    // it could not be asked to end
    bool is_forgotten = false;  // the policy knows it no more
    std::string problem;        // that the executor has with its attempt
    std::optional<train::WorkerCount> count = {};  // what its launcher said last
  };

  static constexpr double kNever = -1e18;

  Controller() = default;
  JobRecord& record(int id) { return records_[index(id - 1)]; }
  const JobRecord& record(int id) const { return records_[index(id - 1)]; }
  Status check_cap(const std::string& tenant, std::size_t more) const;
  Placement to_placement(const std::vector<NodeAllocation>& nodes) const;
  bool are_available(const Placement& placement) const;
  void add_live(int id, Capacity* free = nullptr);
  void settle(std::size_t place, double now);
  void settle_record(std::size_t place, double now);
  void retarget(std::size_t place, Placement target, double now);
  void take_in(const AttemptSeen& seen, double now);
  void take_in(const Problem& problem);
  void put_off_kill(const Problem& problem, double now);
  bool is_to_be_asked(const Live& live, double now) const;
  void follow_count(std::size_t place, double now);
  void measure(std::size_t place, double seconds);
  void ask_to_end(JobRecord& one, double now);
  void ask_to_resize(std::size_t place, double now);
  bool can_be_resized(std::size_t place) const;
  std::string why_not_in_place(std::size_t place) const;
  std::vector<NodeAllocation> to_nodes(const Placement& placement) const;
  void attempt_over(std::size_t place, const AttemptStatus& status, double now);
  void forget(std::size_t place);
  void end_job(std::size_t place, JobState state, double now);
  void take_in_nodes(const Observation& seen, double now);
  void decide(double now);
  void ask_another_policy(const std::vector<int>& active, double now);
  double held_until(std::size_t place) const;
  void apply(const std::vector<Change>& changes, double now);
  void reconcile(double now);
  void command(Command::Kind kind, const JobRecord& record) { commands_.push_back({kind, make_attempt(record)}); }
  void touch(int id) { touched_.insert(id); }
  void save();

  std::unique_ptr<Store> store_;
  ClusterTopology topology_;   // all of them
  ClusterTopology available_;  // the same, without devices of nodes that are drained or missing
  std::filesystem::path folder_;
  ControllerOptions options_;
  std::unique_ptr<Policy> policy_;
  std::vector<JobRecord> records_;        // by id
  std::map<std::string, int> first_ids_;  // by name, of the jobs that were submitted first with it
  std::map<std::string, int> ids_;        // by name, of the jobs that were submitted last with it
  std::vector<Live> live_;                // by arrival
  std::map<int, std::size_t> places_;     // in live_, by id; of jobs that are not over
  std::vector<Job> jobs_;                 // of live_
  std::vector<Progress> progress_;        // likewise; placements are targets
  std::vector<int> arrived_, finished_;   // places, since the last decision
  std::set<std::string> drained_, down_;
  std::set<int> touched_;          // ids of unsaved records
  std::vector<Command> commands_;  // of the step that is under way
  bool has_changed_ = true;
  double wake_ = 0;
  std::string store_problem_, policy_problem_;
};

}  // namespace motley::scheduling
