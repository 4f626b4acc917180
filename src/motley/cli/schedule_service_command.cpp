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
#include "motley/base/os/signals.h"
#include "motley/base/units.h"
#include "motley/cli/commands.h"
#include "motley/cli/options.h"
#include "motley/report/schedule_page.h"
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
  std::string state_dir = "runs/scheduler";

  static const OptionTable<ClientArguments>& options() {
    static const OptionTable<ClientArguments> options = {
        {{"state_dir", OptionKind::kPath, "directory of the service"}, &ClientArguments::state_dir}};
    return options;
  }
};

std::string format_duration(double seconds) {
  return seconds < 0 ? "-" : format_seconds(seconds);
}

struct SubmitArguments {
  ClientArguments client;
  std::string file;
  std::string train;
  std::string profile;
  std::vector<std::string> speeds;
  scheduling::SubmittedJob job;

  static const OptionTable<SubmitArguments>& options();
};

const OptionTable<SubmitArguments>& SubmitArguments::options() {
  using enum OptionKind;
  static const OptionTable<SubmitArguments> options = {
      {"", &SubmitArguments::client},
      {{"file", kPath, "JSON of a job, or of {\"jobs\": [...]} (docs/reference/scheduler-jobs.md)"},
       &SubmitArguments::file},
      {{"train", kPath, "job file of motley train"}, &SubmitArguments::train},
      {"", &SubmitArguments::job},
      {{"profile", kPath,
        "profile of the job (a file of motley profile): iteration times by device type and gradient size; "
        "--estimated-duration is then on the first of its devices"},
       &SubmitArguments::profile},
      {{"speed", kTexts,
        "TYPE:SPEED, relative speed on a device type, where 1 takes --estimated-duration; may be repeated, and the job "
        "cannot run on types that are left out; default: as fast on all"},
       &SubmitArguments::speeds},
  };
  return options;
}

Status run_submit(SubmitArguments arguments) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.client.state_dir));
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
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state_dir));
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
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state_dir));
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

struct WhatIfArguments {
  ClientArguments client;
  std::vector<std::string> submit;
  std::vector<std::string> cancel;
  std::vector<std::string> add_nodes;
  std::vector<std::string> drain;

  static const OptionTable<WhatIfArguments>& options() {
    using enum OptionKind;
    static const OptionTable<WhatIfArguments> options = {
        {"", &WhatIfArguments::client},
        {{"add_node", kTexts, "NAME:DEVICES or NAME:DEVICES:TYPE, a node more; may be repeated"},
         &WhatIfArguments::add_nodes},
        {{"drain", kTexts, "node to drain; may be repeated"}, &WhatIfArguments::drain},
        {{"cancel", kTexts, "job to cancel; may be repeated"}, &WhatIfArguments::cancel},
        {{"submit", kTexts, "file with the JSON of a job to submit; may be repeated"}, &WhatIfArguments::submit},
    };
    return options;
  }
};

Status run_what_if(const WhatIfArguments& arguments) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.client.state_dir));
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
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state_dir));
  for (const std::string& job : jobs) {
    MOTLEY_ASSIGN(const Json answer, client.remove("/v1/jobs/" + job));
    std::printf("%s: %s\n", job.c_str(), answer["state"] == "cancelled" ? "cancelled" : "stopping");
  }
  return {};
}

Status run_drain(const ClientArguments& arguments, const std::string& node, bool is_undone) {
  MOTLEY_ASSIGN(scheduling::Client client, scheduling::Client::of(arguments.state_dir));
  const std::string path = "/v1/nodes/" + node + "/drain";
  MOTLEY_ASSIGN(const Json answer, is_undone ? client.remove(path) : client.post(path, ""));
  std::printf("%s: %s\n", node.c_str(), is_undone ? "takes jobs again" : "drained; its jobs move");
  return {};
}

void add_serve(CLI::App& schedule, Action& action) {
  CLI::App* command =
      schedule.add_subcommand("serve", "Run a scheduler of live jobs: it places, resizes and explains them");
  command->footer(
      "Without Slurm, nodes are parts of this machine: 4x2 is four nodes of two devices each. Examples:\n"
      "  motley schedule serve --cluster 4x2 --state-dir runs/scheduler\n"
      "  motley schedule serve --executor slurm --partition gpu --sbatch=--account=ml");
  auto arguments = std::make_shared<ServeArguments>();
  add_options(*command, *arguments);
  CLI::Option* cluster = command->get_option("--cluster");
  cluster->description(cluster->get_description() + "; default: one node with this machine's cores, or Slurm's nodes");
  command->callback([&action, arguments] { action = [arguments] { return run_serve(*arguments); }; });
}

void add_submit(CLI::App& schedule, Action& action) {
  CLI::App* command = schedule.add_subcommand("submit", "Submit a job to the scheduler");
  command->footer(
      "In a command, {workers}, {attempt}, {folder} and {resume} are replaced by their values "
      "(docs/reference/scheduler-jobs.md).\n"
      "Examples:\n"
      "  motley schedule submit --name fashion --train examples/fashion-mnist/job.yaml --min-workers 1 --max-workers "
      "4\n"
      "  motley schedule submit --name hello --estimated-duration 5s -- echo hello from {workers}");
  auto arguments = std::make_shared<SubmitArguments>();
  add_options(*command, *arguments);
  command->add_option("command", arguments->job.command, "Behind --: a program and its arguments");
  command->callback([&action, arguments] { action = [arguments] { return run_submit(*arguments); }; });
}

void add_clients(CLI::App& schedule, Action& action) {
  CLI::App* list = schedule.add_subcommand("list", "List jobs and nodes");
  auto client = std::make_shared<ClientArguments>();
  auto text = std::make_shared<std::string>();
  auto texts = std::make_shared<std::vector<std::string>>();
  auto is_undone = std::make_shared<bool>(false);
  add_options(*list, *client);
  add_option(*list,
             choice("states", "only jobs in this state; default: all",
                    {"pending", "running", "stopping", "completed", "failed", "cancelled"},
                    {{"waiting", "pending"}, {"done", "completed"}}),
             "", [text](OptionValue value) { *text = std::get<std::string>(std::move(value)); });
  list->callback([=, &action] { action = [=] { return run_list(*client, *text); }; });

  CLI::App* why = schedule.add_subcommand(
      "why", "Explain why a job is pending, shrank, moved or failed, and what would unblock it");
  add_options(*why, *client);
  why->add_option("JOB", *text, "Name of the job")->required();
  why->callback([=, &action] { action = [=] { return run_why(*client, *text); }; });

  CLI::App* cancel = schedule.add_subcommand("cancel", "Cancel jobs");
  add_options(*cancel, *client);
  cancel->add_option("JOB", *texts, "Names of the jobs")->required();
  cancel->callback([=, &action] { action = [=] { return run_cancel(*client, *texts); }; });

  CLI::App* drain =
      schedule.add_subcommand("drain", "Drain a node: jobs move away from it, and no more are placed there");
  add_options(*drain, *client);
  drain->add_option("NODE", *text, "Name of the node")->required();
  drain->add_flag("--undo", *is_undone, "Let jobs run there again");
  drain->callback([=, &action] { action = [=] { return run_drain(*client, *text, *is_undone); }; });

  CLI::App* what_if =
      schedule.add_subcommand("what-if", "Forecast when jobs would be done after a change of the cluster or its jobs");
  what_if->footer("Nothing is changed. Example:\n  motley schedule what-if --add-node new:8 --cancel big");
  auto change = std::make_shared<WhatIfArguments>();
  add_options(*what_if, *change);
  what_if->callback([=, &action] { action = [=] { return run_what_if(*change); }; });
}

}  // namespace

void add_schedule_service(CLI::App& schedule, Action& action) {
  add_serve(schedule, action);
  add_submit(schedule, action);
  add_clients(schedule, action);
}

}  // namespace motley::cli
