// motley schedule serve: live jobs on a shared cluster; and what its users type: submit, list, why, what-if, cancel,
// drain. The latter find the service by its state folder, which has its address and its token.
#include <pthread.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "motley/app/live_scheduler.h"
#include "motley/base/log.h"
#include "motley/base/os/file.h"
#include "motley/base/os/stop_signals.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/schedule_flags.h"
#include "motley/report/scheduler_page.h"
#include "motley/report/text_columns.h"
#include "motley/scheduling/policies/policies.h"
#include "motley/scheduling/service/client.h"
#include "motley/scheduling/service/explain.h"

namespace motley::cli {
namespace {

using Json = scheduling::Client::Json;

// --- The service

struct ServeArguments {
  app::SchedulerRequest request;
  std::string executor = "local";
  std::string objective = "utility";
  bool quiet = false;
};

Status run_serve(ServeArguments arguments) {
  const StopSignals stop;  // before threads start
  if (arguments.quiet) start_logging("warning");
  arguments.request.on_slurm = arguments.executor == "slurm";
  arguments.request.options.policy_options.objective = objectives().at(arguments.objective);
  arguments.request.page = report::scheduler_page;
  MOTLEY_ASSIGN(const app::RunningScheduler scheduler, app::start_scheduler(arguments.request));
  spdlog::info("{}", scheduler.description);
  std::thread waits([&] {
    spdlog::info("stopping ({}); jobs go on", ::strsignal(stop.wait()));
    scheduler.service->stop();
  });
  const Status outcome = scheduler.service->wait();
  ::pthread_kill(waits.native_handle(), SIGTERM);  // where the service ended by itself
  waits.join();
  return outcome;
}

// --- Its clients

struct ClientArguments {
  std::string state = "runs/scheduler";
};

void add_state(CLI::App* command, std::string& state) {
  command->add_option("--state-dir", state, "The service's folder")->capture_default_str();
}

std::string format_duration(double seconds) {
  return seconds < 0 ? "-" : format_seconds(seconds);
}

struct SubmitArguments : ClientArguments {
  std::string file;
  std::string train;
  std::string profile;
  std::vector<std::string> speeds;
  scheduling::SubmittedJob job;
};

Status run_submit(SubmitArguments arguments) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  std::string body;
  if (!arguments.file.empty()) {
    MOTLEY_ASSIGN(body, read_file(arguments.file, 64 << 20));
  } else {
    if (!arguments.train.empty()) {
      MOTLEY_ASSIGN(const std::string is_there, read_file(arguments.train));
      arguments.job.command = app::make_train_command(arguments.train);
    }
    if (arguments.job.command.empty() || arguments.job.name.empty()) {
      return fail(ErrorCode::kInvalidInput,
                  "motley schedule submit: has no job; accepted: --file FILE, or --name with --train JOB or a command "
                  "behind --");
    }
    MOTLEY_TRY(app::set_speeds(arguments.job, arguments.profile, arguments.speeds));
    arguments.job.directory = std::filesystem::current_path().string();
    body = write_json(arguments.job);
  }
  MOTLEY_ASSIGN(const Json answer, client.post("/v1/jobs", body));
  std::string ids;
  for (const Json& id : answer["ids"]) ids += fmt::format("{}{}", ids.empty() ? "" : ", ", id.get<int>());
  std::printf("submitted: %s\n", ids.c_str());
  return {};
}

Status run_list(const ClientArguments& arguments, const std::string& state) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  MOTLEY_ASSIGN(const Json answer, client.get(state.empty() ? "/v1/jobs" : "/v1/jobs?state=" + state));
  std::vector<std::vector<std::string>> rows = {{"id", "name", "state", "workers", "nodes", "attempt", "last change"}};
  for (const Json& job : answer["jobs"]) {
    rows.push_back({fmt::format("{}", job["id"].get<int>()), job["name"].get<std::string>(),
                    job["state"].get<std::string>(), fmt::format("{}", job["workers"].get<int>()),
                    job["nodes"].get<std::string>(), fmt::format("{}", job["attempt"].get<int>()),
                    job["last_change"].get<std::string>()});
  }
  std::printf("%s", report::text_columns(rows).c_str());
  MOTLEY_ASSIGN(const Json nodes, client.get("/v1/nodes"));
  for (const Json& node : nodes["nodes"]) {
    const std::string type = node["type"].get<std::string>();
    std::printf("node %s: %s, %d of %d %s used\n", node["name"].get<std::string>().c_str(),
                node["state"].get<std::string>().c_str(), node["used"].get<int>(), node["devices"].get<int>(),
                type.empty() ? "devices" : type.c_str());
  }
  return {};
}

Status run_why(const ClientArguments& arguments, const std::string& job) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  MOTLEY_ASSIGN(const Json why, client.get("/v1/jobs/" + job + "/why"));
  const std::string blocked_by = why.value("blocked_by", "");
  std::printf("%s is %s: %s\n", job.c_str(), why["state"].get<std::string>().c_str(),
              why["reason"].get<std::string>().c_str());
  if (!blocked_by.empty()) std::printf("  blocked by: %s\n", blocked_by.c_str());
  if (why.contains("last_change")) std::printf("  last change: %s\n", why["last_change"].get<std::string>().c_str());
  if (why.contains("unblocked_by")) {
    for (const Json& line : why["unblocked_by"]) std::printf("  would free it: %s\n", line.get<std::string>().c_str());
  }
  if (why["starts_in_seconds"].get<double>() >= 0) {
    std::printf("  expected to start in %s\n", format_duration(why["starts_in_seconds"].get<double>()).c_str());
  }
  if (why["finishes_in_seconds"].get<double>() >= 0) {
    std::printf("  expected to be done in %s\n", format_duration(why["finishes_in_seconds"].get<double>()).c_str());
  }
  if (why.contains("one_more_device")) std::printf("  %s\n", why["one_more_device"].get<std::string>().c_str());
  return {};
}

struct WhatIfArguments : ClientArguments {
  std::vector<std::string> submit;
  std::vector<std::string> cancel;
  std::vector<std::string> add_nodes;
  std::vector<std::string> drain;
};

Status run_what_if(const WhatIfArguments& arguments) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  Json change = {{"cancel", arguments.cancel},
                 {"drain", arguments.drain},
                 {"add_nodes", Json::array()},
                 {"submit", Json::array()}};
  for (const std::string& node : arguments.add_nodes) {
    const std::size_t colon = node.find(':');
    const std::size_t second = colon == std::string::npos ? colon : node.find(':', colon + 1);
    const int devices = colon == std::string::npos ? 0 : std::atoi(node.c_str() + colon + 1);
    if (devices < 1) {
      return fail(ErrorCode::kInvalidInput,
                  "--add-node: '{}'; accepted: NAME:DEVICES or NAME:DEVICES:TYPE, such as new:8 or new:8:v100", node);
    }
    const std::string type = second == std::string::npos ? "" : node.substr(second + 1);
    change["add_nodes"].push_back({{"name", node.substr(0, colon)}, {"devices", devices}, {"type", type}});
  }
  for (const std::string& file : arguments.submit) {
    MOTLEY_ASSIGN(const std::string text, read_file(file, 64 << 20));
    MOTLEY_ASSIGN(const auto job, parse_json<scheduling::SubmittedJob>(text, file));
    change["submit"].push_back(Json::parse(write_json(job)));
  }
  MOTLEY_ASSIGN(const Json answer, client.post("/v1/what-if", change.dump()));
  std::vector<std::vector<std::string>> rows = {{"job", "starts in", "done in", "would start in", "would be done in"}};
  double now = 0, then = 0;
  int both = 0;
  for (const Json& job : answer["jobs"]) {
    const auto at = [&](const char* key) { return job[key].get<double>(); };
    rows.push_back({job["name"].get<std::string>(), format_duration(at("starts_in_seconds")),
                    format_duration(at("finishes_in_seconds")), format_duration(at("would_start_in_seconds")),
                    format_duration(at("would_finish_in_seconds"))});
    if (at("finishes_in_seconds") < 0 || at("would_finish_in_seconds") < 0) continue;
    now += at("finishes_in_seconds");
    then += at("would_finish_in_seconds");
    ++both;
  }
  std::printf("%s", report::text_columns(rows).c_str());
  if (both > 0) {
    std::printf("on average done in %s instead of %s, over the %d jobs that are in both\n",
                format_duration(then / both).c_str(), format_duration(now / both).c_str(), both);
  }
  return {};
}

Status run_cancel(const ClientArguments& arguments, const std::vector<std::string>& jobs) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  for (const std::string& job : jobs) {
    MOTLEY_ASSIGN(const Json answer, client.remove("/v1/jobs/" + job));
    std::printf("%s: %s\n", job.c_str(), answer["state"] == "cancelled" ? "cancelled" : "asked to end");
  }
  return {};
}

Status run_drain(const ClientArguments& arguments, const std::string& node, bool is_undone) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state));
  const std::string path = "/v1/nodes/" + node + "/drain";
  MOTLEY_ASSIGN(const Json answer, is_undone ? client.remove(path) : client.post(path, ""));
  std::printf("%s: %s\n", node.c_str(), is_undone ? "takes jobs again" : "drained; its jobs move");
  return {};
}

void add_serve(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("serve", "Accept, place, resize and explain live jobs");
  command->footer(
      "Without Slurm, nodes are parts of this machine: 4x2 are four nodes of two devices each. Examples:\n"
      "  motley schedule serve --cluster 4x2 --state-dir runs/scheduler\n"
      "  motley schedule serve --executor slurm --partition gpu --sbatch=--account=ml");
  auto arguments = std::make_shared<ServeArguments>();
  add_cluster(*command, arguments->request.topology)
      ->description("As in simulate [one node with this machine's cores; with Slurm: its nodes]");
  add_state(command, arguments->request.state);
  command->add_option("--executor", arguments->executor, "Who runs the jobs: processes of this machine, or Slurm")
      ->capture_default_str()
      ->check(CLI::IsMember({"local", "slurm"}));
  command->add_option("--partition", arguments->request.slurm.partition, "Of Slurm [its default]");
  command->add_option(
      "--sbatch", arguments->request.slurm.options,
      "A further option for each job of Slurm's, as --sbatch=--account=ml; may be given more than once");
  command->add_option("--listen", arguments->request.listen, "Address and port; port 0 takes any free one")
      ->capture_default_str();
  command->add_option("--policy", arguments->request.options.policy, "Who runs where")
      ->capture_default_str()
      ->check(CLI::IsMember(scheduling::live_policy_names()));
  add_objective(*command, arguments->objective);
  command
      ->add_option("--slot-duration", arguments->request.options.policy_options.slot_seconds,
                   "Seconds between decisions of policies that decide by slots")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 1e7));
  command
      ->add_option("--preemption-cooldown", arguments->request.options.preemption_cooldown,
                   "A job is left alone until it has run this many times as long as its restart takes")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  command->add_flag("--quiet", arguments->quiet, "Log warnings and errors only");
  command->callback([&action, arguments] { action = [arguments] { return run_serve(*arguments); }; });
}

void add_submit(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("submit", "Give a job to the service");
  command->footer(
      "In a command, {workers}, {attempt}, {folder} and {resume} stand for what it is given "
      "(docs/reference/scheduler-jobs.md).\n"
      "Examples:\n"
      "  motley schedule submit --name fashion --train examples/fashion-mnist/job.yaml --min-workers 1 --max-workers "
      "4\n"
      "  motley schedule submit --name hello --estimated-duration 5 -- echo hello from {workers}");
  auto arguments = std::make_shared<SubmitArguments>();
  scheduling::SubmittedJob& job = arguments->job;
  add_state(command, arguments->state);
  command->add_option("--file", arguments->file,
                      "JSON of a job, or of {\"jobs\": [...]} (docs/reference/scheduler-jobs.md)");
  command->add_option("--name", job.name, "Unique among all jobs of the service");
  command->add_option("--train", arguments->train, "Job file of motley train");
  command->add_option("--workers", job.workers, "Workers that it asks for")->capture_default_str();
  command->add_option("--min-workers", job.min_workers, "With which it can run [--workers]");
  command->add_option("--max-workers", job.max_workers, "That it can use [--workers]");
  command->add_option("--estimated-duration", job.estimated_seconds, "That it should take with the workers it asks for")
      ->capture_default_str();
  command->add_option("--restart-cost", job.restart_cost_seconds, "That it loses when its workers change")
      ->capture_default_str();
  command->add_option("--grace-period", job.grace_seconds, "From the notice (SIGTERM) to the end (SIGKILL)")
      ->capture_default_str();
  command->add_option("--weight", job.weight, "Of its utility")->capture_default_str();
  command->add_option("--profile", arguments->profile,
                      "How long its iterations take by type of device, and its gradient: a profile.json of motley "
                      "profile; --estimated-duration hold for the first of its devices");
  command->add_option(
      "--speed", arguments->speeds,
      "TYPE:SPEED, how fast it computes on a type of devices beside those for which --estimated-duration hold; may "
      "be given more than once, and it cannot run on types that are left out [as fast on all]");
  command
      ->add_option("--device-hour-cost", job.device_hour_cost,
                   "What an hour of one of its devices costs, in the unit of its utility [0]")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--max-retries", job.max_retries, "How often it is started again after a failure of its own")
      ->capture_default_str();
  command->add_option("command", job.command, "Behind --: a program and its arguments");
  command->callback([&action, arguments] { action = [arguments] { return run_submit(*arguments); }; });
}

void add_clients(CLI::App& schedule, Action& action) {
  CLI::App* list = schedule.add_subcommand("list", "Jobs of the service, and its nodes");
  auto client = std::make_shared<ClientArguments>();
  auto text = std::make_shared<std::string>();
  auto texts = std::make_shared<std::vector<std::string>>();
  auto is_undone = std::make_shared<bool>(false);
  add_state(list, client->state);
  list->add_option("--states", *text, "pending, running, stopping, completed, failed or cancelled [all]")
      ->check(CLI::IsMember({"pending", "running", "stopping", "completed", "failed", "cancelled"}));
  list->callback([=, &action] { action = [=] { return run_list(*client, *text); }; });

  CLI::App* why = schedule.add_subcommand("why", "Why a job waits, shrank, moved or failed, and what it waits for");
  add_state(why, client->state);
  why->add_option("JOB", *text, "Its name")->required();
  why->callback([=, &action] { action = [=] { return run_why(*client, *text); }; });

  CLI::App* cancel = schedule.add_subcommand("cancel", "End jobs");
  add_state(cancel, client->state);
  cancel->add_option("JOB", *texts, "Names")->required();
  cancel->callback([=, &action] { action = [=] { return run_cancel(*client, *texts); }; });

  CLI::App* drain = schedule.add_subcommand("drain", "Let no more jobs run on a node; those that do move away");
  add_state(drain, client->state);
  drain->add_option("NODE", *text, "Its name")->required();
  drain->add_flag("--undo", *is_undone, "Jobs may run there again");
  drain->callback([=, &action] { action = [=] { return run_drain(*client, *text, *is_undone); }; });

  CLI::App* what_if =
      schedule.add_subcommand("what-if", "When jobs would be done if the cluster or its jobs were others");
  what_if->footer("Nothing is changed. Example:\n  motley schedule what-if --add-node new:8 --cancel big");
  auto change = std::make_shared<WhatIfArguments>();
  add_state(what_if, change->state);
  what_if->add_option("--add-node", change->add_nodes,
                      "NAME:DEVICES or NAME:DEVICES:TYPE; may be given more than once");
  what_if->add_option("--drain", change->drain, "A node; may be given more than once");
  what_if->add_option("--cancel", change->cancel, "A job; may be given more than once");
  what_if->add_option("--submit", change->submit, "A file with the JSON of a job; may be given more than once");
  what_if->callback([=, &action] { action = [=] { return run_what_if(*change); }; });
}

}  // namespace

void add_schedule_service(CLI::App& schedule, Action& action) {
  add_serve(schedule, action);
  add_submit(schedule, action);
  add_clients(schedule, action);
}

}  // namespace motley::cli
