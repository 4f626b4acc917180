// motley schedule simulate: replays a trace of jobs on a cluster under one policy or several. The other commands of
// motley schedule are in schedule_service_command.cpp.
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "motley/app/profiled_job.h"
#include "motley/app/schedule_objective.h"
#include "motley/app/schedule_topology.h"
#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/options.h"
#include "motley/report/schedule_page.h"
#include "motley/report/text_columns.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/workload.h"
#include "motley/scheduling/trace/trace.h"

namespace motley::cli {
namespace {

struct ScheduleArguments {
  std::string trace;
  std::string throughputs;
  std::string device_type = scheduling::TraceOptions().device_type;
  app::ClusterRequest topology;
  std::vector<std::string> policies;
  std::string placement = "any";
  std::string objective = "utility";
  double slot_seconds = 0;  // 0: the workload's own
  double load = 0;          // 0: as recorded
  double days = 0;          // 0: all
  double mtbf = 0;          // seconds; 0: none fails
  double mttr = scheduling::Failures().mttr_seconds;
  double checkpoint_interval = scheduling::Failures().checkpoint_interval_seconds;
  bool elastic = false;
  std::uint64_t seed = 0;
  int repetitions = 1;
  std::string save_trace;
  std::string csv;
  std::string page;

  static const OptionTable<ScheduleArguments>& options();
};

const std::map<std::string, scheduling::PlacementStrategy> kPlacementStrategies = {
    {"any", scheduling::PlacementStrategy::kAny},
    {"consolidated", scheduling::PlacementStrategy::kConsolidated},
    {"compact", scheduling::PlacementStrategy::kCompact}};

const OptionTable<ScheduleArguments>& ScheduleArguments::options() {
  using enum OptionKind;
  static const OptionTable<ScheduleArguments> options = {
      {{"throughputs", kPath, "throughput table for Gavel's traces and workloads (its simulation_throughputs.json)"},
       &ScheduleArguments::throughputs},
      {{"device_type", kText, "device type of that table to run on"}, &ScheduleArguments::device_type},
      {"", &ScheduleArguments::topology},
      {{"load", kReal,
        "scale the arrival times so that the jobs ask for this fraction of all device-seconds until the last arrival; "
        "default: as recorded",
        0.01, 100},
       &ScheduleArguments::load},
      {{"busiest_days", kReal, "keep only the jobs of the busiest period of this many days; default: all jobs", 1e-6},
       &ScheduleArguments::days},
      {{"elastic", kBoolean,
        "make each job elastic that is not yet: give it the times of a well-known model, at random, and from a quarter "
        "to four times the workers it asks for"},
       &ScheduleArguments::elastic},
      {{"mtbf", kSeconds, "mean time between failures of each node; default: no node fails", 1},
       &ScheduleArguments::mtbf},
      {{"mttr", kSeconds, "time until a failed node is repaired"}, &ScheduleArguments::mttr},
      {{"checkpoint_interval", kSeconds,
        "training time between a job's checkpoints; a failure loses what was done since the last one", 0.1},
       &ScheduleArguments::checkpoint_interval},
      {{"seed", kInteger, "seed of all that is random: --elastic, failures, and workloads that a paper describes", 0},
       &ScheduleArguments::seed},
      {{"repetitions", kInteger, "repeat with this many seeds, and print means with 95 % confidence intervals", 1,
        1000},
       &ScheduleArguments::repetitions},
      {{"save_trace", kPath, "write the jobs, as changed by these flags, to this file in our format"},
       &ScheduleArguments::save_trace},
      {{.key = "policy",
        .kind = kTexts,
        .help = "policy to simulate, may be repeated; default: all but gadget, sjf-bco, list-scheduling and "
                "random-devices, which suit a few hundred jobs",
        .choices = scheduling::policy_names()},
       &ScheduleArguments::policies},
      {choice("placement",
              "any: workers go to any free devices; consolidated: a job that fits on one node is never split, a larger "
              "one gets whole idle nodes; compact: on as few nodes and racks as possible",
              {"any", "consolidated", "compact"},
              {{"anywhere", "any"}, {"together", "consolidated"}, {"ring", "compact"}}),
       &ScheduleArguments::placement},
      {app::objective_option(), &ScheduleArguments::objective},
      {{"slot_duration", kSeconds,
        fmt::format("time between the decisions of policies that decide by slots; default: {}, or the paper's",
                    exact_seconds(scheduling::PolicyOptions().slot_seconds)),
        1, 1e7},
       &ScheduleArguments::slot_seconds},
      {{"html", kPath, "write a page to this file: figures, charts, and which job ran where"},
       &ScheduleArguments::page},
      {{"csv", kPath, "write the outcome of each job to this file"}, &ScheduleArguments::csv},
  };
  return options;
}

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

// A line a job and policy.
void append_csv(const std::string& policy, const std::vector<scheduling::Job>& jobs, const scheduling::Outcome& outcome,
                std::string& text) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const scheduling::JobOutcome& job = outcome.jobs[i];
    text += fmt::format("{},{},{},{},{},{},{},{},{}\n", policy, jobs[i].name, jobs[i].workers, jobs[i].duration,
                        jobs[i].arrival, job.started, job.finished, job.restarts, job.failures);
  }
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(one, ignored) == std::filesystem::weakly_canonical(other, ignored);
}

// That they can be written, and that none takes the place of the trace or of another.
Status check_outputs(const ScheduleArguments& arguments) {
  std::vector<std::pair<const char*, std::string>> taken = {{"the trace", arguments.trace}};
  for (const auto& [flag, file] : {std::pair("--csv", arguments.csv), std::pair("--html", arguments.page),
                                   std::pair("--save-trace", arguments.save_trace)}) {
    if (file.empty()) continue;
    for (const auto& [owner, other] : taken) {
      if (is_same_file(file, other)) {
        return fail(ErrorCode::kInvalidInput, "{}: '{}' is the file of {}; accepted: another file", flag, file, owner);
      }
    }
    MOTLEY_TRY(check_writable(file));
    taken.emplace_back(flag, file);
  }
  return {};
}

struct Workload {
  std::string name;
  std::vector<scheduling::Job> jobs;
  scheduling::ClusterTopology topology;
  double horizon = std::numeric_limits<double>::infinity();
  double slot_seconds = scheduling::PolicyOptions().slot_seconds;
  bool is_drawn = false;  // another seed gives another one
  std::uint64_t seed = 0;
};

// Nothing where the trace is not one that a paper describes.
Result<std::optional<Workload>> make_setting(const ScheduleArguments& arguments, std::uint64_t seed,
                                             const std::optional<scheduling::Throughputs>& throughputs) {
  MOTLEY_ASSIGN(std::optional<scheduling::Setting> setting,
                scheduling::setting_named(arguments.trace, seed, throughputs ? &*throughputs : nullptr));
  if (!setting) return std::nullopt;
  if (!arguments.topology.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: '{}', but '{}' has a cluster of its own; accepted: none",
                arguments.topology.cluster, arguments.trace);
  }
  Workload workload;
  MOTLEY_ASSIGN(workload.topology, app::make_topology(arguments.topology, std::move(setting->topology)));
  workload.name = arguments.trace;
  workload.jobs = std::move(setting->jobs);
  workload.horizon = setting->horizon;
  workload.slot_seconds = setting->slot_seconds;
  workload.is_drawn = true;
  return workload;
}

Result<Workload> recorded(const ScheduleArguments& arguments,
                          const std::optional<scheduling::Throughputs>& throughputs) {
  if (arguments.topology.cluster.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: is missing; accepted: such as 128, 16x8, or a cluster.yaml");
  }
  Workload workload;
  workload.name = arguments.trace;
  MOTLEY_ASSIGN(workload.topology, app::make_topology(arguments.topology));
  MOTLEY_ASSIGN(workload.jobs,
                scheduling::read_trace(arguments.trace, {.throughputs = throughputs ? &*throughputs : nullptr,
                                                         .device_type = arguments.device_type,
                                                         .types = workload.topology.types,
                                                         .read_profile = app::read_profiled_job}));
  if (workload.jobs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no jobs; accepted: one or more", arguments.trace);
  }
  return workload;
}

// What is read once for all seeds.
struct Read {
  std::optional<scheduling::Throughputs> throughputs;
  std::optional<Workload> recording;
};

// What is replayed, changed as the flags ask for.
Result<Workload> make_workload(const ScheduleArguments& arguments, std::uint64_t seed, Read& read) {
  if (!arguments.throughputs.empty() && !read.throughputs) {
    MOTLEY_ASSIGN(read.throughputs, scheduling::Throughputs::read(arguments.throughputs));
  }
  MOTLEY_ASSIGN(std::optional<Workload> drawn, make_setting(arguments, seed, read.throughputs));
  if (!drawn && !read.recording) {
    MOTLEY_ASSIGN(read.recording, recorded(arguments, read.throughputs));
  }
  Workload workload = drawn ? std::move(*drawn) : *read.recording;
  std::vector<scheduling::Job>& jobs = workload.jobs;
  if (arguments.days > 0) jobs = scheduling::busiest(jobs, arguments.days);
  if (arguments.load > 0) {
    if (jobs.front().arrival == jobs.back().arrival) {
      return fail(ErrorCode::kInvalidInput, "--load: the jobs of {} all arrive at once; accepted: jobs over some time",
                  arguments.trace);
    }
    scheduling::set_load(jobs, workload.topology, arguments.load);
  }
  if (arguments.elastic) {
    scheduling::make_elastic(jobs, seed);
    workload.is_drawn = true;
  }
  workload.seed = seed;
  if (arguments.mtbf > 0) workload.is_drawn = true;
  if (arguments.slot_seconds > 0) workload.slot_seconds = arguments.slot_seconds;
  return workload;
}

std::vector<std::string> list_policies(const ScheduleArguments& arguments) {
  return arguments.policies.empty() ? scheduling::online_policy_names() : arguments.policies;
}

Result<scheduling::Outcome> replay(const ScheduleArguments& arguments, const Workload& workload,
                                   const std::string& name, bool keep_runs) {
  const scheduling::PolicyOptions options = {.placement = kPlacementStrategies.at(arguments.placement),
                                             .slot_seconds = workload.slot_seconds,
                                             .objective = app::parse_objective(arguments.objective)};
  MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, options));
  scheduling::SimulationOptions replay = {.keep_runs = keep_runs, .horizon = workload.horizon};
  if (arguments.mtbf > 0) {
    replay.failures = {.mtbf_seconds = arguments.mtbf,
                       .mttr_seconds = arguments.mttr,
                       .checkpoint_interval_seconds = arguments.checkpoint_interval,
                       .seed = workload.seed};
  }
  auto outcome = scheduling::simulate(workload.jobs, workload.topology, *policy, replay);
  if (!outcome) return fail(outcome.error().within(workload.name));
  return outcome;
}

Status replay_once(const ScheduleArguments& arguments) {
  Read read;
  MOTLEY_ASSIGN(const Workload workload, make_workload(arguments, arguments.seed, read));
  const std::vector<scheduling::Job>& jobs = workload.jobs;
  double device_seconds = 0;
  for (const scheduling::Job& job : jobs) device_seconds += job.device_seconds();
  std::printf("%s: %zu jobs over %s h, %s device-hours; %d devices on %zu nodes\n", workload.name.c_str(), jobs.size(),
              hours(jobs.back().arrival).c_str(), hours(device_seconds).c_str(), workload.topology.devices(),
              workload.topology.nodes.size());
  if (!arguments.save_trace.empty()) {
    MOTLEY_TRY(write_file(arguments.save_trace, scheduling::format_trace(jobs, workload.topology.types)));
    std::printf("trace: %s\n", arguments.save_trace.c_str());
  }
  std::vector<report::PolicyOutcome> outcomes;
  std::string csv =
      "policy,job,workers,duration_seconds,arrival_seconds,started_seconds,finished_seconds,restarts,failures\n";
  for (const std::string& name : list_policies(arguments)) {
    MOTLEY_ASSIGN(scheduling::Outcome outcome, replay(arguments, workload, name, !arguments.page.empty()));
    append_csv(name, jobs, outcome, csv);
    outcomes.push_back({name, std::move(outcome)});
  }
  const report::ScheduleView view = {workload.name,     jobs, workload.topology, outcomes, workload.horizon,
                                     arguments.mtbf > 0};
  std::printf("%s", report::text_columns(report::schedule_rows(view)).c_str());
  if (!arguments.csv.empty()) {
    MOTLEY_TRY(write_file(arguments.csv, csv));
    std::printf("jobs: %s\n", arguments.csv.c_str());
  }
  if (!arguments.page.empty()) {
    MOTLEY_TRY(write_file(arguments.page, report::schedule_page(view)));
    std::printf("page: %s\n", arguments.page.c_str());
  }
  return {};
}

// Repeats with several seeds: means and 95 % confidence intervals.
Status simulate_repetitions(const ScheduleArguments& arguments) {
  struct Samples {
    std::vector<double> mean_hours, makespan_hours, worst, share;
  };
  std::map<std::string, Samples> by_policy;
  Read read;
  for (int draw = 0; draw < arguments.repetitions; ++draw) {
    MOTLEY_ASSIGN(const Workload workload,
                  make_workload(arguments, arguments.seed + static_cast<std::uint64_t>(draw), read));
    if (!workload.is_drawn) {
      return fail(ErrorCode::kInvalidInput,
                  "--repetitions: {}, but nothing in this workload is random; accepted: 1, or more with --elastic, "
                  "--mtbf or a setting such as gadget:50:100",
                  arguments.repetitions);
    }
    for (const std::string& name : list_policies(arguments)) {
      MOTLEY_ASSIGN(const scheduling::Outcome outcome, replay(arguments, workload, name, false));
      Samples& samples = by_policy[name];
      samples.mean_hours.push_back(scheduling::compute_completion(workload.jobs, outcome).mean / 3600);
      samples.makespan_hours.push_back((outcome.end - outcome.begin) / 3600);
      samples.worst.push_back(scheduling::compute_fairness(workload.jobs, workload.topology, outcome).worst);
      samples.share.push_back(100 * outcome.utility /
                              scheduling::utility_bound(workload.jobs, workload.topology, workload.horizon));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"policy", "mean h", "makespan h", "worst", "of bound %"}};
  const auto cell = [](const std::vector<double>& samples) {
    const Estimate one = estimate(samples);
    return fmt::format("{:.2f} +- {:.2f}", one.mean, one.half_interval);
  };
  for (const std::string& name : list_policies(arguments)) {
    const Samples& samples = by_policy[name];
    rows.push_back(
        {name, cell(samples.mean_hours), cell(samples.makespan_hours), cell(samples.worst), cell(samples.share)});
  }
  std::printf("%s: %d repetitions, means and 95 %% confidence intervals\n%s", arguments.trace.c_str(),
              arguments.repetitions, report::text_columns(rows).c_str());
  return {};
}

Status run_schedule_simulate(const ScheduleArguments& arguments) {
  if (arguments.repetitions == 1) {
    MOTLEY_TRY(check_outputs(arguments));
    return replay_once(arguments);
  }
  for (const auto& [flag, file] : {std::pair("--csv", arguments.csv), std::pair("--html", arguments.page),
                                   std::pair("--save-trace", arguments.save_trace)}) {
    if (!file.empty())
      return fail(ErrorCode::kInvalidInput, "{}: '{}'; accepted: with --repetitions 1 only", flag, file);
  }
  return simulate_repetitions(arguments);
}

void add_schedule_simulate(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("simulate", "Simulate a trace of jobs under one or several policies");
  command->footer(
      "Example:\n"
      "  motley schedule simulate examples/schedule/trace.csv --cluster 4x8 --policy fifo --policy las");
  auto arguments = std::make_shared<ScheduleArguments>();
  command
      ->add_option(
          "TRACE", arguments->trace,
          "Jobs: a trace in the format of Philly, Microsoft ITP, Alibaba, Gavel or ours "
          "(docs/reference/job-traces.md), "
          "or a random workload that a paper describes: gadget:NODES:JOBS, sjf-bco:NODES or gavel:JOBS:JOBS_PER_HOUR")
      ->required();
  add_options(*command, *arguments);
  command->callback([&action, arguments] { action = [arguments] { return run_schedule_simulate(*arguments); }; });
}

}  // namespace

void add_schedule(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("schedule", "Schedule many jobs on a shared cluster");
  command->require_subcommand(1);
  add_schedule_simulate(*command, action);
  add_schedule_service(*command, action);
}

}  // namespace motley::cli
