// motley schedule: simulate replays a trace of jobs under policies; serve runs live jobs on a shared cluster, and
// submit, list, why, logs, what-if, cancel and drain are what its users type.
#include <cstdio>
#include <cstring>
#include <sstream>

#include "motley/app/live_scheduler.h"
#include "motley/app/replay_trace.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/signals.h"
#include "motley/base/text.h"
#include "motley/base/units.h"
#include "motley/cli/command_text.h"
#include "motley/cli/commands.h"
#include "motley/cli/results.h"
#include "motley/report/schedule_page.h"
#include "motley/report/scheduler_page.h"
#include "motley/report/text_columns.h"
#include "motley/serial/json_fields.h"

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
  std::string page;
  bool json = false;

  static const OptionTable<ReplayArguments>& options() {
    using enum OptionKind;
    static const OptionTable<ReplayArguments> options = {
        {"", &ReplayArguments::question},
        {{"repetitions", kInteger, "repeat with this many seeds, and print means with 95 % confidence intervals", 1,
          1000},
         &ReplayArguments::repetitions},
        {{"save_trace", kOutput, "write the jobs, as changed by these flags, to this file in our format"},
         &ReplayArguments::save_trace},
        {{"html", kOutput, "write a page to this file: figures, charts, and which job ran where"},
         &ReplayArguments::page},
        {{"csv", kOutput, "write the outcome of each job to this file"}, &ReplayArguments::csv},
        {json_option(), &ReplayArguments::json},
    };
    return options;
  }
  // By flag.
  std::vector<std::pair<const char*, std::string>> outputs() const {
    return {{"--csv", csv}, {"--html", page}, {"--save-trace", save_trace}, {"--json", json ? "true" : ""}};
  }
};

std::string hours(double seconds) {
  return fmt::format("{:.2f}", seconds / 3600);
}

Status save_trace(const app::Workload& workload, const std::string& file) {
  if (!scheduling::fits_format(workload.jobs)) {
    return fail(ErrorCode::kInvalidInput,
                "--save-trace: our format has no utilities, iterations, reserves and measured speeds, as jobs of '{}' "
                "have; accepted: another trace",
                workload.name);
  }
  return write_named("trace", file, workload.format_jobs());
}

Status replay_once(const ReplayArguments& arguments) {
  const JsonOutput json(arguments.json);
  app::TraceReplay trace(arguments.question);
  MOTLEY_ASSIGN(const app::Workload workload, trace.make_workload(arguments.question.seed));
  double device_seconds = 0;
  for (const auto& job : workload.jobs) device_seconds += job.device_seconds();
  std::printf("%s: %zu jobs over %s h, %s device-hours; %d devices on %zu nodes\n", workload.name.c_str(),
              workload.jobs.size(), hours(workload.jobs.back().arrival).c_str(), hours(device_seconds).c_str(),
              workload.topology.devices(), workload.topology.nodes.size());
  if (!arguments.save_trace.empty()) MOTLEY_TRY(save_trace(workload, arguments.save_trace));
  MOTLEY_ASSIGN(const auto outcomes, trace.replay(workload, !arguments.page.empty()));
  const report::ScheduleView view = {workload.name, workload.jobs,    workload.topology,
                                     outcomes,      workload.horizon, arguments.question.mtbf > 0};
  if (!json.is_asked()) std::printf("%s", report::schedule_text(view).c_str());
  if (!arguments.csv.empty()) MOTLEY_TRY(write_named("jobs", arguments.csv, app::to_csv(workload, outcomes)));
  if (!arguments.page.empty()) MOTLEY_TRY(write_named("page", arguments.page, report::schedule_page(view)));
  return json.print(app::to_json(workload, outcomes));
}

// With several seeds: means and 95 % confidence intervals.
Status replay_repeatedly(const ReplayArguments& arguments) {
  app::TraceReplay trace(arguments.question);
  MOTLEY_ASSIGN(const auto policies, trace.repeat(arguments.repetitions));
  const auto cell = [](const Estimate& one) { return fmt::format("{:.2f} ± {:.2f}", one.mean, one.half_interval); };
  Rows rows = {{"policy", "mean h", "makespan h", "worst", "of bound %"}};
  for (const app::PolicyEstimates& one : policies) {
    rows.push_back(
        {one.policy, cell(one.mean_hours), cell(one.makespan_hours), cell(one.worst), cell(one.percent_of_bound)});
  }
  std::printf("%s: %d repetitions, means and 95 %% confidence intervals\n", arguments.question.trace.c_str(),
              arguments.repetitions);
  print_columns(rows);
  std::printf("%s", report::schedule_legend(rows.front()).c_str());
  return {};
}

Status run_replay(const ReplayArguments& arguments) {
  if (arguments.repetitions == 1) return replay_once(arguments);
  for (const auto& [flag, file] : arguments.outputs()) {
    if (file.empty()) continue;
    return fail(ErrorCode::kInvalidInput, "{}: '{}'; accepted: with --repetitions 1 only", flag, file);
  }
  return replay_repeatedly(arguments);
}

// --- The service

Status run_serve(app::SchedulerRequest request) {
  const StopSignals stop;  // before threads start
  request.page = report::scheduler_page;
  MOTLEY_ASSIGN(const app::RunningScheduler scheduler, app::start_scheduler(request));
  spdlog::info("{}", scheduler.description);
  spdlog::info("stopping ({}); jobs go on", ::strsignal(stop.wait()));
  return {};
}

// --- What its users type

std::string format_duration(double seconds) {
  return seconds < 0 ? "-" : format_seconds(seconds);
}

// What the service has answered. Errors: that of another version.
template <class T>
Result<T> read_answer(const Json& answer) {
  return parse_json<T>(answer.dump(-1, ' ', false, Json::error_handler_t::replace), "the service's answer");
}

struct SubmitArguments {
  app::SubmitRequest request;
  bool json = false;

  static const OptionTable<SubmitArguments>& options() {
    static const OptionTable<SubmitArguments> options = {{"", &SubmitArguments::request},
                                                         {json_option(), &SubmitArguments::json}};
    return options;
  }
};

Status run_submit(const SubmitArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(const Json answer, app::submit(arguments.request));
  MOTLEY_ASSIGN(SubmitResult result, read_answer<SubmitResult>(answer));
  std::printf("submitted: %s\n", fmt::format("{}", fmt::join(result.ids, ", ")).c_str());
  return json.print(write_json(std::move(result)));
}

// Of the commands that name jobs or a node.
struct ClientArguments {
  app::ClientRequest client;
  std::string name;
  std::vector<std::string> names;
  bool is_undone = false;

  static const OptionTable<ClientArguments>& options() {
    static const OptionTable<ClientArguments> options = {{"", &ClientArguments::client}};
    return options;
  }
};

// Of those that ask.
struct AskArguments {
  app::ClientRequest client;
  std::string name;   // of a job
  std::string state;  // of jobs
  bool json = false;

  static const OptionTable<AskArguments>& options() {
    static const OptionTable<AskArguments> options = {{"", &AskArguments::client},
                                                      {json_option(), &AskArguments::json}};
    return options;
  }
};

void print_list(const ListResult& list) {
  Rows rows = {{"id", "name", "state", "workers", "nodes", "attempt", "tenant", "restart cost", "last change"}};
  for (const ListedJob& job : list.jobs) {
    const auto& measured = job.measured_restart_cost;
    rows.push_back({std::to_string(job.id), job.name, job.state, std::to_string(job.workers), job.nodes,
                    std::to_string(job.attempt), job.tenant,
                    measured ? format_seconds(*measured) + " measured" : format_seconds(job.restart_cost),
                    job.last_change});
  }
  print_columns(rows);
  for (const ListedNode& node : list.nodes) {
    std::string text = fmt::format("node {}: {}, {} of {} {}", node.name, node.state, node.used, node.devices,
                                   node.type.empty() ? "devices" : node.type);
    for (const ListedResource& resource : node.resources) {
      text += ", " + scheduling::describe_used(resource.name, resource.used, resource.total);
    }
    std::printf("%s used\n", text.c_str());
  }
}

Status run_list(const AskArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  MOTLEY_ASSIGN(const Json jobs,
                client.get(arguments.state.empty() ? "/v1/jobs" : "/v1/jobs?state=" + arguments.state));
  MOTLEY_ASSIGN(const Json nodes, client.get("/v1/nodes"));
  MOTLEY_ASSIGN(ListResult list, read_answer<ListResult>({{"jobs", jobs["jobs"]}, {"nodes", nodes["nodes"]}}));
  if (!json.is_asked()) print_list(list);
  return json.print(write_json(std::move(list)));
}

void print_why(const WhyResult& why) {
  std::string text = fmt::format("{} is {}: {}\n", why.name, why.state, why.reason);
  if (!why.blocked_by.empty()) text += fmt::format("  blocked by: {}\n", why.blocked_by);
  if (!why.last_change.empty()) text += fmt::format("  last change: {}\n", why.last_change);
  for (const std::string& line : why.unblocked_by) text += fmt::format("  would free it: {}\n", line);
  if (why.starts >= 0) text += fmt::format("  expected to start in {}\n", format_duration(why.starts));
  if (why.finishes >= 0) {
    text += fmt::format("  expected to be done in {}{}\n", format_duration(why.finishes),
                        why.assumption.empty() ? "" : ", " + why.assumption);
  }
  if (!why.one_more_device.empty()) text += fmt::format("  {}\n", why.one_more_device);
  if (!why.last_output.empty()) text += "  its last output:\n";
  std::istringstream lines(why.last_output);
  for (std::string line; std::getline(lines, line);) text += "    " + escaped(line) + "\n";
  if (!why.output_file.empty()) text += fmt::format("  its output: {}\n", why.output_file);
  std::printf("%s", text.c_str());
}

Status run_why(const AskArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(const std::string path, app::job_path(arguments.name));
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  MOTLEY_ASSIGN(const Json answer, client.get(path + "/why"));
  MOTLEY_ASSIGN(WhyResult why, read_answer<WhyResult>(answer));
  if (!json.is_asked()) print_why(why);
  return json.print(write_json(std::move(why)));
}

Status run_logs(const app::LogsRequest& request) {
  const InterruptStop interrupt;
  return app::read_logs(request, interrupt.token(), [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
}

struct WhatIfArguments {
  app::WhatIfRequest request;
  bool json = false;

  static const OptionTable<WhatIfArguments>& options() {
    static const OptionTable<WhatIfArguments> options = {{"", &WhatIfArguments::request},
                                                         {json_option(), &WhatIfArguments::json}};
    return options;
  }
};

void print_what_if(const WhatIfResult& result) {
  Rows rows = {{"job", "starts in", "done in", "would start in", "would be done in"}};
  double now = 0, then = 0;
  int both = 0;
  for (const ComparedJob& job : result.jobs) {
    rows.push_back({job.name, format_duration(job.starts), format_duration(job.finishes),
                    format_duration(job.would_start), format_duration(job.would_finish)});
    if (job.finishes < 0 || job.would_finish < 0) continue;
    now += job.finishes;
    then += job.would_finish;
    ++both;
  }
  print_columns(rows);
  if (both == 0) return;
  const std::string before = format_duration(now / both), after = format_duration(then / both);
  const std::string of = both == 1 ? "for the job that is there" : fmt::format("over the {} jobs that are there", both);
  std::printf("%s\n",
              before == after
                  ? fmt::format("on average nothing changes {} either way: done in {}", of, after).c_str()
                  : fmt::format("on average done in {} instead of {}, {} either way", after, before, of).c_str());
}

Status run_what_if(const WhatIfArguments& arguments) {
  const JsonOutput json(arguments.json);
  MOTLEY_ASSIGN(const Json answer, app::ask_what_if(arguments.request));
  MOTLEY_ASSIGN(WhatIfResult result, read_answer<WhatIfResult>(answer));
  if (!json.is_asked()) print_what_if(result);
  return json.print(write_json(std::move(result)));
}

Status run_cancel(const ClientArguments& arguments) {
  std::vector<std::string> paths;  // of all before any is cancelled
  for (const std::string& job : arguments.names) {
    MOTLEY_ASSIGN(paths.emplace_back(), app::job_path(job));
  }
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::string& job = arguments.names[i];
    MOTLEY_ASSIGN(const Json answer, client.remove(paths[i]));
    std::printf("%s: %s\n", job.c_str(), answer["state"] == "cancelled" ? "cancelled" : "stopping");
  }
  return {};
}

Status run_drain(const ClientArguments& arguments) {
  MOTLEY_ASSIGN(const std::string node, app::node_path(arguments.name));
  MOTLEY_ASSIGN(app::SchedulerClient client, app::connect(arguments.client));
  const std::string path = node + "/drain";
  MOTLEY_TRY(arguments.is_undone ? client.remove(path) : client.post(path, ""));
  std::printf("%s: %s\n", arguments.name.c_str(), arguments.is_undone ? "takes jobs again" : "drained; its jobs move");
  return {};
}

// Each of the ways to say what the job is, alone: nothing that is typed is left aside.
void exclude_other_jobs(CLI::App& submit) {
  CLI::Option* file = submit.get_option("--file");
  for (const char* name : {"COMMAND", "--train", "--profile", "--speed", "--speedup"}) {
    file->excludes(submit.get_option(name));
  }
  for (const auto& entry : scheduling::SubmittedJob::options().entries()) {
    file->excludes(submit.get_option("--" + flag_name(entry.text.key)));
  }
  submit.get_option("--train")->excludes(submit.get_option("COMMAND"));
}

void add_clients(CLI::App& schedule, CommandLine& line) {
  const auto [submit, submitted] = add_command<SubmitArguments>(
      schedule, line, "submit", "Submit a job to the scheduler",
      "In a command, {workers}, {attempt}, {folder} and {resume} are replaced by their values "
      "(docs/reference/scheduler-jobs.md).\n"
      "Examples:\n"
      "  motley schedule submit --name fashion --train examples/fashion-mnist/job.yaml --min-workers 1 --max-workers "
      "4\n"
      "  motley schedule submit --name hello --estimated-duration 5s -- echo hello from {workers}",
      run_submit);
  set_usage(submit,
            "motley schedule submit --name TEXT [FLAGS] -- COMMAND...\n"
            "   or: motley schedule submit --name TEXT --train PATH [FLAGS]\n"
            "   or: motley schedule submit --file PATH [FLAGS]");
  submit.add_option("COMMAND", submitted.request.job.command, "behind --: a program and its arguments")
      ->type_name(OptionText{}.type_name());
  exclude_other_jobs(submit);
  const auto [list, listed] = add_command<AskArguments>(schedule, line, "list", "List jobs and nodes", "", run_list);
  add_option(list,
             choice("states", "only jobs in this state; default: all",
                    {"pending", "running", "stopping", "completed", "failed", "cancelled"},
                    {{"waiting", "pending"}, {"done", "completed"}}),
             "", [&state = listed.state](const OptionValue& value) { state = std::get<std::string>(value); });
  const auto [why, asked] = add_command<AskArguments>(
      schedule, line, "why", "Explain why a job is pending, shrank, moved or failed, and what would unblock it", "",
      run_why);
  add_argument(why, {"JOB", OptionKind::kText, "name or number of the job"}, asked.name)->required();
  const auto [logs, read] = add_command<app::LogsRequest>(schedule, line, "logs", "Print what a job has printed",
                                                          "Example:\n  motley schedule logs hello --follow", run_logs);
  add_argument(logs, {"JOB", OptionKind::kText, "name or number of the job"}, read.job)->required();
  const auto [cancel, cancelled] =
      add_command<ClientArguments>(schedule, line, "cancel", "Cancel jobs", "", run_cancel);
  cancel.add_option("JOB", cancelled.names, "names or numbers of the jobs")
      ->type_name(OptionText{}.type_name())
      ->required();
  const auto [drain, drained] = add_command<ClientArguments>(
      schedule, line, "drain", "Drain a node: jobs move away from it, and no more are placed there", "", run_drain);
  add_argument(drain, {"NODE", OptionKind::kText, "name of the node"}, drained.name)->required();
  add_option(drain, {"undo", OptionKind::kBoolean, "let jobs run there again"}, false,
             [&undone = drained.is_undone](const OptionValue&) { undone = true; });
  add_command<WhatIfArguments>(schedule, line, "what-if",
                               "Forecast when jobs would be done after a change of the cluster or its jobs",
                               "Nothing is changed. Example:\n  motley schedule what-if --add-node new:8", run_what_if);
}

}  // namespace

void add_schedule(CLI::App& app, CommandLine& line) {
  CLI::App& schedule = *app.add_subcommand("schedule", "Schedule many jobs on a shared cluster")->require_subcommand(1);
  add_general_flags(schedule, line);
  const auto [simulate, simulated] = add_command<ReplayArguments>(
      schedule, line, "simulate", "Simulate a trace of jobs under one or several policies",
      "Example:\n"
      "  motley schedule simulate examples/schedule/trace.csv --cluster 4x8 --policy fifo --policy las",
      run_replay);
  add_argument(simulate,
               {"TRACE", OptionKind::kPath,
                "jobs: a trace in the format of Philly, Microsoft ITP, Alibaba, Gavel or ours "
                "(docs/reference/job-traces.md), or a random workload that a paper describes: gadget:NODES:JOBS, "
                "gadget-contended:NODES:JOBS, sjf-bco:NODES or gavel:JOBS:JOBS_PER_HOUR"},
               simulated.question.trace)
      ->required();
  simulate.get_option("--cluster")->default_str("needed; a paper's workload has its own");
  const auto [serve, served] = add_command<app::SchedulerRequest>(
      schedule, line, "serve", "Run a scheduler of live jobs: it places, resizes and explains them",
      "Without Slurm, nodes are parts of this machine: 4x2 is four nodes of two devices each. Examples:\n"
      "  motley schedule serve --cluster 4x2 --state-dir runs/scheduler\n"
      "  motley schedule serve --listen scheduler.lab:29600 --tls-certificate scheduler.pem --tls-key scheduler.key\n"
      "  motley schedule serve --executor slurm --partition gpu --sbatch=--account=ml",
      run_serve);
  CLI::Option* cluster = serve.get_option("--cluster");
  cluster->default_str("one node with this machine's cores, or Slurm's nodes");
  add_clients(schedule, line);
}

}  // namespace motley::cli
