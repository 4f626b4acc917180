// motley schedule: simulate replays a trace of jobs under policies; serve runs live jobs on a shared cluster, and
// submit, list, why, what-if, cancel and drain are what its users type.
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "motley/app/live_scheduler.h"
#include "motley/app/replay_trace.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/report/schedule_page.h"
#include "motley/report/scheduler_page.h"
#include "motley/report/text_columns.h"

namespace motley::cli {
namespace {

using app::Json;
using Rows = std::vector<std::vector<std::string>>;

void print_columns(const Rows& rows) {
  std::printf("%s", report::text_columns(rows).c_str());
}

// --- A trace

struct ReplayArguments {
  app::TraceQuestion question;
  int repetitions = 1;
  std::string save_trace;
  std::string csv;
  std::string json;
  std::string page;

  static const OptionTable<ReplayArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ReplayArguments> options = {
        {"", &ReplayArguments::question},
        {{"repetitions", kInteger, "repeat with this many seeds, and print means with 95 % confidence intervals", 1,
          1000},
         &ReplayArguments::repetitions},
        {{"save_trace", kPath, "write the jobs, as changed by these flags, to this file in our format"},
         &ReplayArguments::save_trace},
        {{"html", kPath, "write a page to this file: figures, charts, and which job ran where"},
         &ReplayArguments::page},
        {{"csv", kPath, "write the outcome of each job to this file"}, &ReplayArguments::csv},
        {{"json", kPath, "write the figures of each policy to this file"}, &ReplayArguments::json},
    };
    return options;
  }
  // By flag.
  std::vector<std::pair<const char*, std::string>> outputs() const {
    return {{"--csv", csv}, {"--json", json}, {"--html", page}, {"--save-trace", save_trace}};
  }
};

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::weakly_canonical(one, ignored) == std::filesystem::weakly_canonical(other, ignored);
}

// That they can be written, and that none takes the place of the trace or of another.
Status check_outputs(const ReplayArguments& arguments) {
  std::vector<std::pair<const char*, std::string>> taken = {{"the trace", arguments.question.trace}};
  for (const auto& [flag, file] : arguments.outputs()) {
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

Status replay_once(const ReplayArguments& arguments) {
  app::TraceReplay trace(arguments.question);
  MOTLEY_ASSIGN(const app::Workload workload, trace.make_workload(arguments.question.seed));
  double device_seconds = 0;
  for (const auto& job : workload.jobs) device_seconds += job.device_seconds();
  std::printf("%s: %zu jobs over %s h, %s device-hours; %d devices on %zu nodes\n", workload.name.c_str(),
              workload.jobs.size(), hours(workload.jobs.back().arrival).c_str(), hours(device_seconds).c_str(),
              workload.topology.devices(), workload.topology.nodes.size());
  if (!arguments.save_trace.empty()) MOTLEY_TRY(write_named("trace", arguments.save_trace, workload.format_jobs()));
  MOTLEY_ASSIGN(const auto outcomes, trace.replay(workload, !arguments.page.empty()));
  const report::ScheduleView view = {workload.name, workload.jobs,    workload.topology,
                                     outcomes,      workload.horizon, arguments.question.mtbf > 0};
  print_columns(report::schedule_rows(view));
  if (!arguments.csv.empty()) MOTLEY_TRY(write_named("jobs", arguments.csv, app::to_csv(workload, outcomes)));
  if (!arguments.json.empty()) MOTLEY_TRY(write_named("figures", arguments.json, app::to_json(workload, outcomes)));
  if (!arguments.page.empty()) MOTLEY_TRY(write_named("page", arguments.page, report::schedule_page(view)));
  return {};
}

// With several seeds: means and 95 % confidence intervals.
Status replay_repeatedly(const ReplayArguments& arguments) {
  app::TraceReplay trace(arguments.question);
  MOTLEY_ASSIGN(const auto policies, trace.repeat(arguments.repetitions));
  const auto cell = [](const Estimate& one) { return fmt::format("{:.2f} +- {:.2f}", one.mean, one.half_interval); };
  Rows rows = {{"policy", "mean h", "makespan h", "worst", "of bound %"}};
  for (const app::PolicyEstimates& one : policies) {
    rows.push_back(
        {one.policy, cell(one.mean_hours), cell(one.makespan_hours), cell(one.worst), cell(one.percent_of_bound)});
  }
  std::printf("%s: %d repetitions, means and 95 %% confidence intervals\n", arguments.question.trace.c_str(),
              arguments.repetitions);
  print_columns(rows);
  return {};
}

Status run_replay(const ReplayArguments& arguments) {
  if (arguments.repetitions == 1) {
    MOTLEY_TRY(check_outputs(arguments));
    return replay_once(arguments);
  }
  for (const auto& [flag, file] : arguments.outputs()) {
    if (file.empty()) continue;
    return fail(ErrorCode::kInvalidInput, "{}: '{}'; accepted: with --repetitions 1 only", flag, file);
  }
  return replay_repeatedly(arguments);
}

// --- The service

struct ServeArguments {
  app::SchedulerRequest request;
  bool quiet = false;

  static const OptionTable<ServeArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ServeArguments> options = {
        {"", &ServeArguments::request},
        {{"quiet", kBoolean, "log warnings and errors only"}, &ServeArguments::quiet},
    };
    return options;
  }
};

Status run_serve(ServeArguments arguments) {
  const StopSignals stop;  // before threads start
  if (arguments.quiet) start_logging("warning");
  arguments.request.page = report::scheduler_page;
  MOTLEY_ASSIGN(const app::RunningScheduler scheduler, app::start_scheduler(arguments.request));
  spdlog::info("{}", scheduler.description);
  spdlog::info("stopping ({}); jobs go on", ::strsignal(stop.wait()));
  return {};
}

// --- What its users type

std::string format_duration(double seconds) {
  return seconds < 0 ? "-" : format_seconds(seconds);
}

Status run_submit(const app::SubmitRequest& request) {
  MOTLEY_ASSIGN(const Json answer, app::submit(request));
  std::printf("submitted: %s\n", fmt::format("{}", fmt::join(answer["ids"].get<std::vector<int>>(), ", ")).c_str());
  return {};
}

// Of the commands that name jobs, a state of jobs, or a node.
struct ClientArguments {
  app::ClientRequest client;
  std::string name;
  std::vector<std::string> names;
  std::string state;
  bool as_json = false;
  bool is_undone = false;

  static const OptionTable<ClientArguments>& options() {
    static const OptionTable<ClientArguments> options = {{"", &ClientArguments::client}};
    return options;
  }
};

std::string cell(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Status run_list(const ClientArguments& arguments) {
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  MOTLEY_ASSIGN(const Json answer,
                client.get(arguments.state.empty() ? "/v1/jobs" : "/v1/jobs?state=" + arguments.state));
  MOTLEY_ASSIGN(const Json nodes, client.get("/v1/nodes"));
  if (arguments.as_json) {
    const Json both = {{"jobs", answer["jobs"]}, {"nodes", nodes["nodes"]}};
    std::printf("%s\n", both.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return {};
  }
  Rows rows = {{"id", "name", "state", "workers", "nodes", "attempt", "restart cost", "last change"}};
  for (const Json& job : answer["jobs"]) {
    const Json& measured = job["measured_restart_cost"];
    rows.push_back({cell(job["id"]), cell(job["name"]), cell(job["state"]), cell(job["workers"]), cell(job["nodes"]),
                    cell(job["attempt"]),
                    measured.is_null() ? format_seconds(job["restart_cost"].get<double>())
                                       : format_seconds(measured.get<double>()) + " measured",
                    cell(job["last_change"])});
  }
  print_columns(rows);
  for (const Json& node : nodes["nodes"]) {
    const std::string type = cell(node["type"]);
    std::printf("node %s: %s, %d of %d %s used\n", cell(node["name"]).c_str(), cell(node["state"]).c_str(),
                node["used"].get<int>(), node["devices"].get<int>(), type.empty() ? "devices" : type.c_str());
  }
  return {};
}

Status run_why(const ClientArguments& arguments) {
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  MOTLEY_ASSIGN(const Json why, client.get("/v1/jobs/" + arguments.name + "/why"));
  std::string text = fmt::format("{} is {}: {}\n", arguments.name, cell(why["state"]), cell(why["reason"]));
  if (const std::string by = why.value("blocked_by", ""); !by.empty()) text += fmt::format("  blocked by: {}\n", by);
  if (why.contains("last_change")) text += fmt::format("  last change: {}\n", cell(why["last_change"]));
  for (const Json& line : why.value("unblocked_by", Json::array())) {
    text += fmt::format("  would free it: {}\n", cell(line));
  }
  const double starts = why["starts_in_seconds"].get<double>();
  const double finishes = why["finishes_in_seconds"].get<double>();
  if (starts >= 0) text += fmt::format("  expected to start in {}\n", format_duration(starts));
  if (finishes >= 0) text += fmt::format("  expected to be done in {}\n", format_duration(finishes));
  if (why.contains("one_more_device")) text += fmt::format("  {}\n", cell(why["one_more_device"]));
  std::printf("%s", text.c_str());
  return {};
}

Status run_what_if(const app::WhatIfRequest& request) {
  MOTLEY_ASSIGN(const Json answer, app::ask_what_if(request));
  Rows rows = {{"job", "starts in", "done in", "would start in", "would be done in"}};
  double now = 0, then = 0;
  int both = 0;
  for (const Json& job : answer["jobs"]) {
    const auto at = [&](const char* key) { return job[key].get<double>(); };
    rows.push_back({cell(job["name"]), format_duration(at("starts_in_seconds")),
                    format_duration(at("finishes_in_seconds")), format_duration(at("would_start_in_seconds")),
                    format_duration(at("would_finish_in_seconds"))});
    if (at("finishes_in_seconds") < 0 || at("would_finish_in_seconds") < 0) continue;
    now += at("finishes_in_seconds");
    then += at("would_finish_in_seconds");
    ++both;
  }
  print_columns(rows);
  if (both > 0) {
    std::printf("on average done in %s instead of %s, over the %d jobs that are in both\n",
                format_duration(then / both).c_str(), format_duration(now / both).c_str(), both);
  }
  return {};
}

Status run_cancel(const ClientArguments& arguments) {
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  for (const std::string& job : arguments.names) {
    MOTLEY_ASSIGN(const Json answer, client.remove("/v1/jobs/" + job));
    std::printf("%s: %s\n", job.c_str(), answer["state"] == "cancelled" ? "cancelled" : "stopping");
  }
  return {};
}

Status run_drain(const ClientArguments& arguments) {
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  const std::string path = "/v1/nodes/" + arguments.name + "/drain";
  MOTLEY_TRY(arguments.is_undone ? client.remove(path) : client.post(path, ""));
  std::printf("%s: %s\n", arguments.name.c_str(), arguments.is_undone ? "takes jobs again" : "drained; its jobs move");
  return {};
}

void add_clients(CLI::App& schedule, Action& action) {
  const auto [submit, submitted] = add_command<app::SubmitRequest>(
      schedule, action, "submit", "Submit a job to the scheduler",
      "In a command, {workers}, {attempt}, {folder} and {resume} are replaced by their values "
      "(docs/reference/scheduler-jobs.md).\n"
      "Examples:\n"
      "  motley schedule submit --name fashion --train examples/fashion-mnist/job.yaml --min-workers 1 --max-workers "
      "4\n"
      "  motley schedule submit --name hello --estimated-duration 5s -- echo hello from {workers}",
      run_submit);
  submit.add_option("command", submitted.job.command, "Behind --: a program and its arguments");
  const auto [list, listed] =
      add_command<ClientArguments>(schedule, action, "list", "List jobs and nodes", "", run_list);
  add_option(list,
             choice("states", "only jobs in this state; default: all",
                    {"pending", "running", "stopping", "completed", "failed", "cancelled"},
                    {{"waiting", "pending"}, {"done", "completed"}}),
             "", [&state = listed.state](const OptionValue& value) { state = std::get<std::string>(value); });
  list.add_flag("--json", listed.as_json, "Print JSON, with declared and measured restart costs");
  const auto [why, asked] = add_command<ClientArguments>(
      schedule, action, "why", "Explain why a job is pending, shrank, moved or failed, and what would unblock it", "",
      run_why);
  why.add_option("JOB", asked.name, "Name of the job")->required();
  const auto [cancel, cancelled] =
      add_command<ClientArguments>(schedule, action, "cancel", "Cancel jobs", "", run_cancel);
  cancel.add_option("JOB", cancelled.names, "Names of the jobs")->required();
  const auto [drain, drained] = add_command<ClientArguments>(
      schedule, action, "drain", "Drain a node: jobs move away from it, and no more are placed there", "", run_drain);
  drain.add_option("NODE", drained.name, "Name of the node")->required();
  drain.add_flag("--undo", drained.is_undone, "Let jobs run there again");
  add_command<app::WhatIfRequest>(
      schedule, action, "what-if", "Forecast when jobs would be done after a change of the cluster or its jobs",
      "Nothing is changed. Example:\n  motley schedule what-if --add-node new:8 --cancel big", run_what_if);
}

}  // namespace

void add_schedule(CLI::App& app, Action& action) {
  CLI::App& schedule = *app.add_subcommand("schedule", "Schedule many jobs on a shared cluster")->require_subcommand(1);
  const auto [simulate, simulated] = add_command<ReplayArguments>(
      schedule, action, "simulate", "Simulate a trace of jobs under one or several policies",
      "Example:\n"
      "  motley schedule simulate examples/schedule/trace.csv --cluster 4x8 --policy fifo --policy las",
      run_replay);
  simulate
      .add_option("TRACE", simulated.question.trace,
                  "Jobs: a trace in the format of Philly, Microsoft ITP, Alibaba, Gavel or ours "
                  "(docs/reference/job-traces.md), or a random workload that a paper describes: gadget:NODES:JOBS, "
                  "sjf-bco:NODES or gavel:JOBS:JOBS_PER_HOUR")
      ->required();
  const auto [serve, served] = add_command<ServeArguments>(
      schedule, action, "serve", "Run a scheduler of live jobs: it places, resizes and explains them",
      "Without Slurm, nodes are parts of this machine: 4x2 is four nodes of two devices each. Examples:\n"
      "  motley schedule serve --cluster 4x2 --state-dir runs/scheduler\n"
      "  motley schedule serve --listen scheduler.lab:29600 --tls-certificate scheduler.pem --tls-key scheduler.key\n"
      "  motley schedule serve --executor slurm --partition gpu --sbatch=--account=ml",
      run_serve);
  CLI::Option* cluster = serve.get_option("--cluster");
  cluster->description(cluster->get_description() + "; default: one node with this machine's cores, or Slurm's nodes");
  add_clients(schedule, action);
}

}  // namespace motley::cli
