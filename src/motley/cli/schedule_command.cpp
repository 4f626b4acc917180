// motley schedule simulate: replays a trace of jobs on a cluster under one policy or several. The other commands of
// motley schedule are in schedule_service_command.cpp.
#include <cstdio>
#include <filesystem>
#include <map>

#include "motley/base/file.h"
#include "motley/cli/commands.h"
#include "motley/cli/schedule_machines.h"
#include "motley/report/schedule_page.h"
#include "motley/report/text_columns.h"
#include "motley/schedule/simulator.h"
#include "motley/schedule/trace.h"
#include "motley/schedule/workload.h"

namespace motley::cli {
namespace {

struct ScheduleArguments {
  std::string trace;
  MachinesArguments machines;
  std::vector<std::string> policies;
  std::string packing = "anywhere";
  std::string objective = "utility";
  double slot_seconds = schedule::PolicyOptions().slot_seconds;
  double load = 0;  // 0: as recorded
  double days = 0;  // 0: all
  bool elastic = false;
  std::uint64_t seed = 0;
  std::string save_trace;
  std::string csv;
  std::string page;
};

const std::map<std::string, schedule::Packing> kPackings = {{"anywhere", schedule::Packing::kAnywhere},
                                                            {"together", schedule::Packing::kTogether},
                                                            {"ring", schedule::Packing::kRing}};

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

// A line a job and policy.
void append_csv(const std::string& policy, const std::vector<schedule::Job>& jobs, const schedule::Outcome& outcome,
                std::string& text) {
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const schedule::JobOutcome& job = outcome.jobs[i];
    text += fmt::format("{},{},{},{},{},{},{},{}\n", policy, jobs[i].name, jobs[i].workers, jobs[i].duration,
                        jobs[i].arrival, job.started, job.finished, job.restarts);
  }
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(one, ignored) == std::filesystem::weakly_canonical(other, ignored);
}

// That they can be written, and that none takes the place of the trace or of another.
Status check_outputs(const ScheduleArguments& arguments) {
  std::vector<std::pair<const char*, std::string>> taken = {{"the trace", arguments.trace}};
  for (const auto& [flag, file] : {std::pair("--csv", arguments.csv), std::pair("--page", arguments.page),
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

// The trace's jobs, changed as the flags ask for.
Result<std::vector<schedule::Job>> workload_of(const ScheduleArguments& arguments, const schedule::Machines& machines) {
  MOTLEY_ASSIGN(std::vector<schedule::Job> jobs, schedule::read_trace(arguments.trace));
  if (jobs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no jobs; accepted: one or more", arguments.trace);
  }
  if (arguments.days > 0) jobs = schedule::busiest(jobs, arguments.days);
  if (arguments.load > 0) {
    if (jobs.front().arrival == jobs.back().arrival) {
      return fail(ErrorCode::kInvalidInput, "--load: the jobs of {} all arrive at once; accepted: jobs over some time",
                  arguments.trace);
    }
    schedule::set_load(jobs, machines, arguments.load);
  }
  if (arguments.elastic) schedule::make_elastic(jobs, arguments.seed);
  return jobs;
}

Status run_schedule_simulate(const ScheduleArguments& arguments) {
  MOTLEY_ASSIGN(const schedule::Machines machines, machines_of(arguments.machines));
  MOTLEY_ASSIGN(const std::vector<schedule::Job> jobs, workload_of(arguments, machines));
  MOTLEY_TRY(check_outputs(arguments));
  double device_seconds = 0;
  for (const schedule::Job& job : jobs) device_seconds += job.device_seconds();
  std::printf("%s: %zu jobs over %s h, %s device-hours; %d devices on %zu servers\n", arguments.trace.c_str(),
              jobs.size(), hours(jobs.back().arrival).c_str(), hours(device_seconds).c_str(), machines.devices(),
              machines.servers.size());

  std::vector<report::PolicyOutcome> outcomes;
  std::string csv = "policy,job,workers,duration_seconds,arrival_seconds,started_seconds,finished_seconds,restarts\n";
  const schedule::PolicyOptions options = {.packing = kPackings.at(arguments.packing),
                                           .slot_seconds = arguments.slot_seconds,
                                           .objective = objectives().at(arguments.objective)};
  if (!arguments.save_trace.empty()) {
    MOTLEY_TRY(write_file(arguments.save_trace, schedule::format_trace(jobs)));
    std::printf("trace: %s\n", arguments.save_trace.c_str());
  }
  for (const std::string& name : arguments.policies.empty() ? schedule::online_policy_names() : arguments.policies) {
    MOTLEY_ASSIGN(const auto policy, schedule::make_policy(name, options));
    auto outcome = schedule::simulate(jobs, machines, *policy, {.keep_runs = !arguments.page.empty()});
    if (!outcome) {
      return fail(outcome.error().within(arguments.trace));
    }
    append_csv(name, jobs, *outcome, csv);
    outcomes.push_back({name, std::move(*outcome)});
  }
  const report::ScheduleView view = {arguments.trace, jobs, machines, outcomes};
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

void add_schedule_simulate(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("simulate", "Replay a trace of jobs under one policy or several");
  command->footer(
      "Example:\n"
      "  motley schedule simulate examples/schedule/trace.csv --machines 4x8 --policy fifo --policy las");
  auto arguments = std::make_shared<ScheduleArguments>();
  command->add_option("TRACE", arguments->trace, "The jobs: Philly's, Microsoft ITP's or our format (docs/schedule.md)")
      ->required();
  add_machines(*command, arguments->machines)->required();
  command
      ->add_option(
          "--load", arguments->load,
          "Move arrivals so that jobs ask for this share of all device-seconds until the last one [as recorded]")
      ->check(CLI::Range(0.01, 100.0));
  command->add_option("--days", arguments->days, "Only the jobs of that many days that are together busiest [all]")
      ->check(CLI::PositiveNumber);
  command->add_flag("--elastic", arguments->elastic,
                    "Give each job that is not elastic the times of a well-known model, by lot: it may have from a "
                    "quarter to four times the workers it asks for");
  command->add_option("--seed", arguments->seed, "Of that lot [0]");
  command->add_option("--save-trace", arguments->save_trace, "Write the jobs, so changed, to this file in our format");
  command
      ->add_option("--policy", arguments->policies,
                   "Which one; may be given more than once [all but sjf-bco, list-scheduling and random-devices, which "
                   "are meant for "
                   "a few hundred jobs]")
      ->check(CLI::IsMember(schedule::policy_names()));
  command
      ->add_option("--packing", arguments->packing,
                   "anywhere: a job takes any free devices; together: it is never split where a server could hold it, "
                   "and has whole idle servers else; ring: on as few servers and racks as can be [anywhere]")
      ->check(CLI::IsMember(kPackings));
  add_objective(*command, arguments->objective);
  command
      ->add_option(
          "--slot", arguments->slot_seconds,
          fmt::format("Seconds between decisions of policies that decide by slots [{:g}]", arguments->slot_seconds))
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            const double seconds = std::strtod(text.c_str(), nullptr);
            return seconds >= 1 && seconds <= 1e7 ? "" : fmt::format("'{}'; accepted: seconds from 1 to 1e7", text);
          },
          "SECONDS"));
  command->add_option("--page", arguments->page, "Write a page of figures, charts and who ran where to this file");
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
