#include "motley/app/replay_trace.h"

#include <map>

#include "motley/app/profiled_job.h"
#include "motley/base/units.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/trace/workload.h"
#include "motley/serial/json_schema.h"

namespace motley::app {
namespace {

const std::map<std::string, scheduling::PlacementStrategy> kPlacementStrategies = {
    {"any", scheduling::PlacementStrategy::kAny},
    {"consolidated", scheduling::PlacementStrategy::kConsolidated},
    {"compact", scheduling::PlacementStrategy::kCompact}};

constexpr double kSecondsOfDay = 86400;

struct PolicyFigures {
  std::string policy;
  double mean_completion = 0;
  double median_completion = 0;
  double p99_completion = 0;
  double makespan = 0;
  double utilisation = 0;
  double utility = 0;
  double unfair_fraction = 0;
  double worst_fairness = 0;
  std::int64_t restarts = 0;
  std::int64_t failures = 0;
  double lost_device_seconds = 0;
  std::int64_t decisions = 0;
};
struct ReplayFigures {
  std::string trace;
  std::int64_t jobs = 0;
  std::int64_t nodes = 0;
  std::int64_t devices = 0;
  std::vector<PolicyFigures> policies;
};

template <class Archive>
void fields(Archive& archive, PolicyFigures& policy) {
  archive.required("policy", policy.policy);
  archive.required("mean_completion_seconds", policy.mean_completion, "from a job's arrival to its end");
  archive.required("median_completion_seconds", policy.median_completion);
  archive.required("p99_completion_seconds", policy.p99_completion);
  archive.required("makespan_seconds", policy.makespan);
  archive.required("utilisation", policy.utilisation, "fraction of the devices' time");
  archive.required("utility", policy.utility, NumberIs::kFinite);
  archive.required("unfair_fraction", policy.unfair_fraction, "of the jobs");
  archive.required("worst_fairness", policy.worst_fairness, NumberIs::kFiniteOrNull);
  archive.required("restarts", policy.restarts);
  archive.required("failures", policy.failures);
  archive.required("lost_device_seconds", policy.lost_device_seconds);
  archive.required("decisions", policy.decisions);
}

template <class Archive>
void fields(Archive& archive, ReplayFigures& replay) {
  archive.required("trace", replay.trace);
  archive.required("jobs", replay.jobs);
  archive.required("nodes", replay.nodes);
  archive.required("devices", replay.devices);
  archive.required("policies", replay.policies);
}

}  // namespace

const OptionTable<TraceQuestion>& TraceQuestion::options() {
  using enum OptionKind;
  static const OptionTable<TraceQuestion> options = {
      {{"throughputs", kPath,
        "throughput table for Gavel's traces and workloads (its simulation_throughputs.json), or the folder of "
        "tables of the applications of Sia's workloads (sia-simulator/traces)"},
       &TraceQuestion::throughputs},
      {{"device_type", kText, "device type of that table to run on"}, &TraceQuestion::device_type},
      {"", &TraceQuestion::topology},
      {{"load", kReal,
        "scale the arrival times so that the jobs ask for this fraction of all device-seconds until the last arrival; "
        "default: as recorded",
        0.01, 100},
       &TraceQuestion::load},
      {{"busiest_period", kSeconds, "keep only the jobs of the busiest period of this length; default: all jobs", 1},
       &TraceQuestion::busiest_seconds},
      {{"elastic", kBoolean,
        "make each job elastic that is not yet: give it the times of a well-known model, at random, and from a quarter "
        "to four times the workers it asks for; jobs of Sia's workloads adapt their workers and batches"},
       &TraceQuestion::elastic},
      {{"mtbf", kSeconds, "mean time between failures of each node; default: no node fails", 1}, &TraceQuestion::mtbf},
      {{"mttr", kSeconds, "time until a failed node is repaired"}, &TraceQuestion::mttr},
      {{"checkpoint_interval", kSeconds,
        "training time between a job's checkpoints; a failure loses what was done since the last one", 0.1},
       &TraceQuestion::checkpoint_interval},
      {{"seed", kInteger, "seed of all that is random: --elastic, failures, and workloads that a paper describes", 0},
       &TraceQuestion::seed},
      {{.key = "policy",
        .kind = kTexts,
        .help = "policy to simulate, may be repeated; default: all but gadget, sjf-bco, list-scheduling and "
                "random-devices, which suit a few hundred jobs",
        .choices = scheduling::policy_names()},
       &TraceQuestion::policies},
      {choice("placement",
              "any: workers go to any free devices; consolidated: a job that fits on one node is never split, a larger "
              "one gets whole idle nodes; compact: on as few nodes and racks as possible",
              {"any", "consolidated", "compact"},
              {{"anywhere", "any"}, {"together", "consolidated"}, {"ring", "compact"}}),
       &TraceQuestion::placement},
      {objective_option(), &TraceQuestion::objective},
      {{"slot_duration", kSeconds,
        fmt::format("time between the decisions of policies that decide by slots; default: {}, or the paper's",
                    exact_seconds(scheduling::PolicyOptions().slot_seconds)),
        1, 1e7},
       &TraceQuestion::slot_seconds},
      {choice(
           "decide_at",
           "when policies that decide by slots do: slots: where a slot begins; events: at every arrival and completion "
           "too, for a slot from then on (elastic-srsf and afs always do)",
           {"slots", "events"}),
       &TraceQuestion::decide_at},
      {{"duration_error", kReal, "tell policies durations that are wrong by up to this factor, either way, at random",
        1, 100},
       &TraceQuestion::duration_error},
  };
  return options;
}

TraceReplay::TraceReplay(const TraceQuestion& question)
    : question_(question),
      policies_(question.policies.empty() ? scheduling::online_policy_names() : question.policies) {}

// Nothing where the trace is not one that a paper describes.
Result<std::optional<Workload>> TraceReplay::draw(std::uint64_t seed) const {
  MOTLEY_ASSIGN(std::optional<scheduling::Setting> setting,
                scheduling::setting_named(question_.trace, seed, throughputs_ ? &*throughputs_ : nullptr));
  if (!setting) return std::nullopt;
  if (!question_.topology.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: '{}', but '{}' has a cluster of its own; accepted: none",
                question_.topology.cluster, question_.trace);
  }
  if (question_.topology.node_cpus > 0 || question_.topology.node_memory > 0) {
    return fail(ErrorCode::kInvalidInput, "{}: is given, but '{}' has a cluster of its own; accepted: none",
                question_.topology.node_cpus > 0 ? "--node-cpus" : "--node-memory", question_.trace);
  }
  MOTLEY_ASSIGN(auto topology, make_topology(question_.topology, std::move(setting->topology)));
  return Workload{.name = question_.trace,
                  .jobs = std::move(setting->jobs),
                  .topology = std::move(topology),
                  .horizon = setting->horizon,
                  .slot_seconds = setting->slot_seconds,
                  .is_drawn = true};
}

Result<Workload> TraceReplay::read() const {
  if (question_.topology.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: is missing; accepted: such as 128, 16x8, or a cluster.yaml");
  }
  MOTLEY_ASSIGN(auto topology, make_topology(question_.topology));
  std::optional<scheduling::Applications> applications;
  if (std::filesystem::is_directory(question_.throughputs)) {
    MOTLEY_ASSIGN(applications, scheduling::Applications::read(question_.throughputs, topology));
  }
  const scheduling::TraceOptions options = {.throughputs = throughputs_ ? &*throughputs_ : nullptr,
                                            .device_type = question_.device_type,
                                            .applications = applications ? &*applications : nullptr,
                                            .is_adaptive = question_.elastic,
                                            .types = topology.types,
                                            .resources = topology.resources,
                                            .read_profile = read_profiled_job};
  MOTLEY_ASSIGN(auto jobs, read_document(
                               question_.topology.documents, question_.trace,
                               [&](const std::string& text, const std::string& name) {
                                 return scheduling::parse_trace(text, name, options);
                               },
                               [&](const std::string& file) { return scheduling::read_trace(file, options); }));
  if (jobs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no jobs; accepted: one or more", question_.trace);
  }
  return Workload{.name = question_.trace, .jobs = std::move(jobs), .topology = std::move(topology)};
}

Result<Workload> TraceReplay::make_workload(std::uint64_t seed) {
  const bool is_table = !question_.throughputs.empty() && !std::filesystem::is_directory(question_.throughputs);
  if (is_table && !throughputs_) {
    MOTLEY_ASSIGN(throughputs_, scheduling::Throughputs::read(question_.throughputs));
  }
  MOTLEY_ASSIGN(std::optional<Workload> drawn, draw(seed));
  if (!drawn && !recording_) {
    MOTLEY_ASSIGN(recording_, read());
  }
  Workload workload = drawn ? std::move(*drawn) : *recording_;
  std::vector<scheduling::Job>& jobs = workload.jobs;
  if (question_.busiest_seconds > 0) jobs = scheduling::busiest(jobs, question_.busiest_seconds / kSecondsOfDay);
  if (question_.load > 0) {
    if (jobs.front().arrival == jobs.back().arrival) {
      return fail(ErrorCode::kInvalidInput, "--load: the jobs of {} all arrive at once; accepted: jobs over some time",
                  question_.trace);
    }
    scheduling::set_load(jobs, workload.topology, question_.load);
  }
  if (question_.elastic) scheduling::make_elastic(jobs, seed);
  if (question_.elastic || question_.mtbf > 0 || question_.duration_error > 1) workload.is_drawn = true;
  workload.seed = seed;
  if (question_.slot_seconds > 0) workload.slot_seconds = question_.slot_seconds;
  return workload;
}

Result<scheduling::Outcome> TraceReplay::replay(const Workload& workload, const std::string& policy,
                                                bool keep_runs) const {
  MOTLEY_ASSIGN(const auto made,
                scheduling::make_policy(policy, {.placement = kPlacementStrategies.at(question_.placement),
                                                 .slot_seconds = workload.slot_seconds,
                                                 .at_events = question_.decide_at == "events",
                                                 .objective = parse_objective(question_.objective)}));
  scheduling::SimulationOptions options = {.keep_runs = keep_runs,
                                           .horizon = workload.horizon,
                                           .duration_error = question_.duration_error,
                                           .duration_seed = workload.seed,
                                           .stop = question_.stop};
  if (question_.mtbf > 0) {
    options.failures = {.mtbf_seconds = question_.mtbf,
                        .mttr_seconds = question_.mttr,
                        .checkpoint_interval_seconds = question_.checkpoint_interval,
                        .seed = workload.seed};
  }
  auto outcome = scheduling::simulate(workload.jobs, workload.topology, *made, options);
  if (!outcome) return fail(outcome.error().within(workload.name));
  return outcome;
}

Result<std::vector<scheduling::PolicyOutcome>> TraceReplay::replay(const Workload& workload, bool keep_runs) const {
  std::vector<scheduling::PolicyOutcome> outcomes;
  for (const std::string& policy : policies_) {
    MOTLEY_ASSIGN(scheduling::Outcome outcome, replay(workload, policy, keep_runs));
    outcomes.push_back({policy, std::move(outcome)});
  }
  return outcomes;
}

Result<std::vector<PolicyEstimates>> TraceReplay::repeat(int repetitions) {
  struct Samples {
    std::vector<double> mean_hours, makespan_hours, worst, percent_of_bound;
  };
  std::map<std::string, Samples> by_policy;
  for (int number = 0; number < repetitions; ++number) {
    MOTLEY_ASSIGN(const Workload workload, make_workload(question_.seed + static_cast<std::uint64_t>(number)));
    if (!workload.is_drawn) {
      return fail(ErrorCode::kInvalidInput,
                  "--repetitions: {}, but nothing in this workload is random; accepted: 1, or more with --elastic, "
                  "--mtbf, --duration-error or a setting such as gadget:50:100",
                  repetitions);
    }
    const double bound = scheduling::utility_bound(workload.jobs, workload.topology, workload.horizon);
    for (const std::string& policy : policies_) {
      MOTLEY_ASSIGN(const scheduling::Outcome outcome, replay(workload, policy, false));
      Samples& samples = by_policy[policy];
      samples.mean_hours.push_back(scheduling::compute_completion(workload.jobs, outcome).mean / 3600);
      samples.makespan_hours.push_back((outcome.end - outcome.begin) / 3600);
      samples.worst.push_back(scheduling::compute_fairness(workload.jobs, workload.topology, outcome).worst);
      samples.percent_of_bound.push_back(100 * outcome.utility / bound);
    }
  }
  std::vector<PolicyEstimates> estimates;
  for (const std::string& policy : policies_) {
    const Samples& samples = by_policy[policy];
    estimates.push_back({policy, estimate(samples.mean_hours), estimate(samples.makespan_hours),
                         estimate(samples.worst), estimate(samples.percent_of_bound)});
  }
  return estimates;
}

std::string to_json(const Workload& workload, const std::vector<scheduling::PolicyOutcome>& outcomes) {
  ReplayFigures replay = {.trace = workload.name,
                          .jobs = std::ssize(workload.jobs),
                          .nodes = std::ssize(workload.topology.nodes),
                          .devices = workload.topology.devices(),
                          .policies = {}};
  for (const auto& [policy, outcome] : outcomes) {
    const scheduling::Completion completion = scheduling::compute_completion(workload.jobs, outcome);
    const scheduling::Fairness fairness = scheduling::compute_fairness(workload.jobs, workload.topology, outcome);
    PolicyFigures figures = {.policy = policy,
                             .mean_completion = completion.mean,
                             .median_completion = completion.median,
                             .p99_completion = completion.p99,
                             .makespan = outcome.end - outcome.begin,
                             .utilisation = outcome.utilisation,
                             .utility = outcome.utility,
                             .unfair_fraction = fairness.unfair,
                             .worst_fairness = fairness.worst,
                             .lost_device_seconds = outcome.lost_device_seconds,
                             .decisions = outcome.decisions};
    for (const scheduling::JobOutcome& job : outcome.jobs) {
      figures.restarts += job.restarts;
      figures.failures += job.failures;
    }
    replay.policies.push_back(std::move(figures));
  }
  return write_json(std::move(replay));
}

std::string replay_schema() {
  return json_schema<ReplayFigures>("motley schedule simulate --json", "What became of a trace under each policy.");
}

std::string to_csv(const Workload& workload, const std::vector<scheduling::PolicyOutcome>& outcomes) {
  std::string text =
      "policy,job,workers,duration_seconds,arrival_seconds,started_seconds,finished_seconds,restarts,failures\n";
  for (const auto& [policy, outcome] : outcomes) {
    for (std::size_t i = 0; i < workload.jobs.size(); ++i) {
      const scheduling::Job& job = workload.jobs[i];
      const scheduling::JobOutcome& its = outcome.jobs[i];
      text += fmt::format("{},{},{},{},{},{},{},{},{}\n", policy, job.name, job.workers, job.duration, job.arrival,
                          its.started, its.finished, its.restarts, its.failures);
    }
  }
  return text;
}

}  // namespace motley::app
