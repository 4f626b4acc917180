// motley schedule simulate: replays a trace of jobs on a cluster under one policy or several.
#include <cstdio>

#include "motley/base/file.h"
#include "motley/cli/commands.h"
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
  std::string csv;
};

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

Status run_schedule_simulate(const ScheduleArguments& arguments) {
  MOTLEY_ASSIGN(const std::vector<schedule::Job> jobs, schedule::read_trace(arguments.trace));
  MOTLEY_ASSIGN(const schedule::Machines machines, schedule::parse_machines(arguments.machines));
  if (jobs.empty()) {
    return fail(ErrorCode::kInvalidInput, "{}: has no jobs; accepted: one or more", arguments.trace);
  }
  if (!arguments.csv.empty()) {
    MOTLEY_TRY(check_writable(arguments.csv));
  }
  double device_seconds = 0;
  for (const schedule::Job& job : jobs) device_seconds += job.device_seconds();
  std::printf("%s: %zu jobs over %s h, %s device-hours; %d devices on %zu servers\n", arguments.trace.c_str(),
              jobs.size(), hours(jobs.back().arrival).c_str(), hours(device_seconds).c_str(), machines.devices(),
              machines.servers.size());

  std::vector<std::vector<std::string>> table = {
      {"policy", "mean h", "median h", "p99 h", "makespan h", "busy %", "restarts a job", "decisions", "ms each"}};
  std::string csv = "policy,job,workers,duration_seconds,arrival_seconds,started_seconds,finished_seconds,restarts\n";
  const auto packing = arguments.packing == "together" ? schedule::Packing::kTogether : schedule::Packing::kAnywhere;
  for (const std::string& name : arguments.policies.empty() ? schedule::policy_names() : arguments.policies) {
    MOTLEY_ASSIGN(const auto policy, schedule::make_policy(name, {packing}));
    auto outcome = schedule::simulate(jobs, machines, *policy);
    if (!outcome) {
      return fail(outcome.error().within(arguments.trace));
    }
    const schedule::Completion completion = schedule::completion_of(jobs, *outcome);
    double restarts = 0;
    for (const schedule::JobOutcome& job : outcome->jobs) restarts += job.restarts;
    table.push_back({name, hours(completion.mean), hours(completion.median), hours(completion.p99),
                     hours(outcome->end - outcome->begin), fmt::format("{:.1f}", 100 * outcome->busy_share),
                     fmt::format("{:.2f}", restarts / static_cast<double>(jobs.size())),
                     fmt::format("{}", outcome->decisions),
                     fmt::format("{:.4f}", 1e3 * outcome->decision_seconds / static_cast<double>(outcome->decisions))});
    append_csv(name, jobs, *outcome, csv);
  }
  std::printf("%s", report::text_columns(table).c_str());
  if (!arguments.csv.empty()) {
    MOTLEY_TRY(write_file(arguments.csv, csv));
    std::printf("jobs: %s\n", arguments.csv.c_str());
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
  command->add_option("--policy", arguments->policies, "Which one; may be given more than once [all]")
      ->check(CLI::IsMember(schedule::policy_names()));
  command
      ->add_option("--packing", arguments->packing,
                   "anywhere: a job takes any free devices; together: it is never split where a server could hold it, "
                   "and has whole idle servers else [anywhere]")
      ->check(CLI::IsMember({"anywhere", "together"}));
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
