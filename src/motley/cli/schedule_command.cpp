// motley schedule simulate: replays a trace of jobs on a cluster under one policy or several. The other commands of
// motley schedule are in schedule_service_command.cpp.
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "motley/base/os/file.h"
#include "motley/base/statistics.h"
#include "motley/cli/commands.h"
#include "motley/cli/schedule_flags.h"
#include "motley/report/schedule_page.h"
#include "motley/report/text_columns.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/simulator/simulator.h"
#include "motley/scheduling/trace/settings.h"
#include "motley/scheduling/trace/trace.h"
#include "motley/scheduling/trace/workload.h"

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
  double mtbf_hours = 0;    // 0: none fails
  double mttr_hours = scheduling::Failures().mttr_seconds / 3600;
  double checkpoint_interval_minutes = scheduling::Failures().checkpoint_interval_seconds / 60;
  bool elastic = false;
  std::uint64_t seed = 0;
  int repetitions = 1;
  std::string save_trace;
  std::string csv;
  std::string page;
};

const std::map<std::string, scheduling::PlacementStrategy> kPlacementStrategies = {
    {"any", scheduling::PlacementStrategy::kAny},
    {"consolidated", scheduling::PlacementStrategy::kConsolidated},
    {"compact", scheduling::PlacementStrategy::kCompact}};

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
  if (!arguments.topology.topology.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: '{}', but '{}' has a cluster of its own; accepted: none",
                arguments.topology.topology, arguments.trace);
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
  if (arguments.topology.topology.empty()) {
    return fail(ErrorCode::kInvalidInput, "--cluster: is missing; accepted: such as 128, 16x8, or a cluster.yaml");
  }
  Workload workload;
  workload.name = arguments.trace;
  MOTLEY_ASSIGN(workload.topology, app::make_topology(arguments.topology));
  MOTLEY_ASSIGN(workload.jobs,
                scheduling::read_trace(arguments.trace, {.throughputs = throughputs ? &*throughputs : nullptr,
                                                         .device_type = arguments.device_type,
                                                         .types = workload.topology.types}));
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
  if (arguments.mtbf_hours > 0) workload.is_drawn = true;
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
                                             .objective = objectives().at(arguments.objective)};
  MOTLEY_ASSIGN(const auto policy, scheduling::make_policy(name, options));
  scheduling::SimulationOptions replay = {.keep_runs = keep_runs, .horizon = workload.horizon};
  if (arguments.mtbf_hours > 0) {
    replay.failures = {.mtbf_seconds = 3600 * arguments.mtbf_hours,
                       .mttr_seconds = 3600 * arguments.mttr_hours,
                       .checkpoint_interval_seconds = 60 * arguments.checkpoint_interval_minutes,
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
  const report::ScheduleView view = {workload.name,           jobs, workload.topology, outcomes, workload.horizon,
                                     arguments.mtbf_hours > 0};
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

// Of several draws of what is drawn at random, means and intervals of 95 % confidence.
Status replay_draws(const ScheduleArguments& arguments) {
  struct Draws {
    std::vector<double> mean_hours, makespan_hours, worst, share;
  };
  std::map<std::string, Draws> by_policy;
  Read read;
  for (int draw = 0; draw < arguments.repetitions; ++draw) {
    MOTLEY_ASSIGN(const Workload workload,
                  make_workload(arguments, arguments.seed + static_cast<std::uint64_t>(draw), read));
    if (!workload.is_drawn) {
      return fail(
          ErrorCode::kInvalidInput,
          "--repetitions: {}, but nothing of this workload is drawn at random; accepted: 1, or more with --elastic, "
          "--mtbf or a setting such as gadget:50:100",
          arguments.repetitions);
    }
    for (const std::string& name : list_policies(arguments)) {
      MOTLEY_ASSIGN(const scheduling::Outcome outcome, replay(arguments, workload, name, false));
      Draws& draws = by_policy[name];
      draws.mean_hours.push_back(scheduling::compute_completion(workload.jobs, outcome).mean / 3600);
      draws.makespan_hours.push_back((outcome.end - outcome.begin) / 3600);
      draws.worst.push_back(scheduling::compute_fairness(workload.jobs, workload.topology, outcome).worst);
      draws.share.push_back(100 * outcome.utility /
                            scheduling::utility_bound(workload.jobs, workload.topology, workload.horizon));
    }
  }
  std::vector<std::vector<std::string>> rows = {{"policy", "mean h", "makespan h", "worst", "of bound %"}};
  const auto cell = [](const std::vector<double>& draws) {
    const Estimate one = estimate(draws);
    return fmt::format("{:.2f} +- {:.2f}", one.mean, one.half_interval);
  };
  for (const std::string& name : list_policies(arguments)) {
    const Draws& draws = by_policy[name];
    rows.push_back({name, cell(draws.mean_hours), cell(draws.makespan_hours), cell(draws.worst), cell(draws.share)});
  }
  std::printf("%s: %d draws, means and intervals of 95 %% confidence\n%s", arguments.trace.c_str(),
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
  return replay_draws(arguments);
}

void add_schedule_simulate(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("simulate", "Replay a trace of jobs under one policy or several");
  command->footer(
      "Example:\n"
      "  motley schedule simulate examples/schedule/trace.csv --cluster 4x8 --policy fifo --policy las");
  auto arguments = std::make_shared<ScheduleArguments>();
  command
      ->add_option(
          "TRACE", arguments->trace,
          "The jobs: a file of Philly's, Microsoft ITP's, Alibaba's, Gavel's or our format "
          "(docs/reference/job-traces.md); or drawn as a paper has them, gadget:SERVERS:JOBS, sjf-bco:SERVERS or "
          "gavel:JOBS:JOBS_AN_HOUR")
      ->required();
  command->add_option("--throughputs", arguments->throughputs,
                      "For Gavel's traces and jobs: how fast its models are, as its simulation_throughputs.json");
  command->add_option("--device-type", arguments->device_type, "And on which of the table's types of devices")
      ->capture_default_str();
  add_cluster(*command, arguments->topology);
  command
      ->add_option(
          "--load", arguments->load,
          "Move arrivals so that jobs ask for this share of all device-seconds until the last one [as recorded]")
      ->check(CLI::Range(0.01, 100.0));
  command
      ->add_option("--busiest-days", arguments->days, "Only the jobs of that many days that are together busiest [all]")
      ->check(CLI::PositiveNumber);
  command->add_flag("--elastic", arguments->elastic,
                    "Give each job that is not elastic the times of a well-known model, at random: it may have from a "
                    "quarter to four times the workers it asks for");
  command->add_option("--mtbf", arguments->mtbf_hours, "Servers fail, each after so many hours on average [none fails]")
      ->check(CLI::Range(0.001, 1e9));
  command->add_option("--mttr", arguments->mttr_hours, "And come back after so many")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--checkpoint-interval", arguments->checkpoint_interval_minutes,
                   "Jobs save what they did so often, and lose what they did since when a node fails under them")
      ->check(CLI::Range(0.01, 1e6))
      ->capture_default_str();
  command->add_option("--seed", arguments->seed, "Of these draws, and of what a paper has drawn [0]");
  command->add_option("--repetitions", arguments->repetitions, "How often to draw, for means and how sure they are [1]")
      ->check(CLI::Range(1, 1000));
  command->add_option("--save-trace", arguments->save_trace, "Write the jobs, so changed, to this file in our format");
  command
      ->add_option(
          "--policy", arguments->policies,
          "Which one; may be given more than once [all but gadget, sjf-bco, list-scheduling and random-devices, "
          "which are meant for a few hundred jobs]")
      ->check(CLI::IsMember(scheduling::policy_names()));
  command
      ->add_option("--placement", arguments->placement,
                   "anywhere: a job takes any free devices; together: it is never split where a node could hold it, "
                   "and has whole idle nodes else; ring: on as few nodes and racks as can be [anywhere]")
      ->check(CLI::IsMember(kPlacementStrategies));
  add_objective(*command, arguments->objective);
  command
      ->add_option("--slot-duration", arguments->slot_seconds,
                   fmt::format("Seconds between decisions of policies that decide by slots [{:g}, or the paper's]",
                               scheduling::PolicyOptions().slot_seconds))
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            const double seconds = std::strtod(text.c_str(), nullptr);
            return seconds >= 1 && seconds <= 1e7 ? "" : fmt::format("'{}'; accepted: seconds from 1 to 1e7", text);
          },
          "SECONDS"));
  command->add_option("--html", arguments->page, "Write a page of figures, charts and who ran where to this file");
  command->add_option("--csv", arguments->csv, "Write what became of each job to this file");
  command->callback([&action, arguments] { action = [arguments] { return run_schedule_simulate(*arguments); }; });
}

}  // namespace

void add_schedule(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("schedule", "Many jobs on a shared cluster");
  command->require_subcommand(1);
  add_schedule_simulate(*command, action);
  add_schedule_service(*command, action);
}

}  // namespace motley::cli
