// motley schedule simulate: replays a trace of jobs on a cluster under one policy or several.
#include <cstdio>
#include <filesystem>
#include <map>

#include "motley/base/file.h"
#include "motley/cli/commands.h"
#include "motley/report/schedule_page.h"
#include "motley/report/text_columns.h"
#include "motley/schedule/simulator.h"
#include "motley/schedule/trace.h"

namespace motley::cli {
namespace {

struct ScheduleArguments {
  std::string trace;
  std::string machines;
  std::vector<std::string> policies;
  std::string packing = "anywhere";
  std::string objective = "utility";
  double slot_seconds = schedule::PolicyOptions().slot_seconds;
  std::string csv;
  std::string page;
};

const std::map<std::string, schedule::Packing> kPackings = {{"anywhere", schedule::Packing::kAnywhere},
                                                            {"together", schedule::Packing::kTogether},
                                                            {"ring", schedule::Packing::kRing}};

const std::map<std::string, schedule::Objective> kObjectives = {{"utility", schedule::Objective::kUtility},
                                                                {"completion", schedule::Objective::kCompletion},
                                                                {"makespan", schedule::Objective::kMakespan}};

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

// That they can be written, and that neither takes the place of the trace or of the other.
Status check_outputs(const ScheduleArguments& arguments) {
  for (const auto& [flag, file] : {std::pair("--csv", arguments.csv), std::pair("--page", arguments.page)}) {
    if (file.empty()) continue;
    if (is_same_file(file, arguments.trace)) {
      return fail(ErrorCode::kInvalidInput, "{}: '{}' is the trace itself; accepted: another file", flag, file);
    }
    MOTLEY_TRY(check_writable(file));
  }
  if (!arguments.csv.empty() && !arguments.page.empty() && is_same_file(arguments.csv, arguments.page)) {
    return fail(ErrorCode::kInvalidInput, "--page: '{}' is the file of --csv; accepted: another file", arguments.page);
  }
  return {};
}

Status run_schedule_simulate(const ScheduleArguments& arguments) {
  MOTLEY_ASSIGN(const std::vector<schedule::Job> jobs, schedule::read_trace(arguments.trace));
  MOTLEY_ASSIGN(const schedule::Machines machines, schedule::parse_machines(arguments.machines));
  if (jobs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no jobs; accepted: one or more", arguments.trace);
  }
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
                                           .objective = kObjectives.at(arguments.objective)};
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
  command
      ->add_option("--machines", arguments->machines,
                   "Devices: 128 in one place, 16x8 on 16 servers of 8, 16x8/4 in racks of 4 servers")
      ->required();
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
  command
      ->add_option(
          "--objective", arguments->objective,
          "What gadget-exact aims at: utility of the jobs' own, or, knowing durations, short times to completion, or a "
          "short makespan [utility]")
      ->check(CLI::IsMember(kObjectives));
  command
      ->add_option(
          "--slot", arguments->slot_seconds,
          fmt::format("Seconds between decisions of drf, gadget-exact and themis [{:g}]", arguments->slot_seconds))
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
}

}  // namespace motley::cli
