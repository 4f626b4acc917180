#include "motley/app/live_scheduler.h"

#include <grp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include "motley/app/profiled_job.h"
#include "motley/base/os/file.h"
#include "motley/base/os/own_program.h"
#include "motley/base/text.h"
#include "motley/base/units.h"
#include "motley/cluster/machine.h"
#include "motley/scheduling/executors/executors.h"
#include "motley/scheduling/policies/policies.h"

namespace motley::app {
namespace {

constexpr std::size_t kMaxJobsBytes = 64 << 20;  // of a file
constexpr double kMaxCap = 1e6;
constexpr double kFollowSeconds = 0.5;  // between looks at what a job prints

scheduling::SlurmOptions slurm_options(const SchedulerRequest& request) {
  return {.partition = request.partition, .options = request.sbatch};
}

// The nodes that --cluster names, or all that the executor has. Those of Slurm must be Slurm's.
Result<scheduling::ClusterTopology> read_nodes(const SchedulerRequest& request) {
  if (request.executor != "slurm") {
    const cluster::Machine machine = cluster::detect_machine();
    scheduling::ClusterTopology here = scheduling::uniform(1, machine.cores);
    here.set_resource(scheduling::kCpus, machine.cores);
    here.set_resource(scheduling::kMemory, machine.memory_bytes);
    return make_topology(request.topology, std::move(here));
  }
  MOTLEY_ASSIGN(const scheduling::ClusterTopology there, scheduling::slurm_topology(slurm_options(request)));
  MOTLEY_ASSIGN(scheduling::ClusterTopology topology, make_topology(request.topology, there));
  topology.gives_whole_cpus = there.gives_whole_cpus;
  for (const scheduling::Node& node : topology.nodes) {
    const auto known = std::ranges::find(there.nodes, node.name, &scheduling::Node::name);
    if (known != there.nodes.end() && node.devices <= known->devices) {
      const int place = topology.node_named(node.name);
      for (std::size_t i = 0; i < there.resources.size(); ++i) {
        const int its = topology.resource_named(there.resources[i]);
        if (its >= 0 && std::isfinite(node.resources[static_cast<std::size_t>(its)])) continue;
        topology.set_resource(there.resources[i], place, known->resources[i]);
      }
      continue;
    }
    std::vector<std::string> names;
    for (const scheduling::Node& one : there.nodes) names.push_back(fmt::format("{} ({})", one.name, one.devices));
    return fail(ErrorCode::kInvalidInput, "--cluster: node '{}' with {} devices is none of Slurm's; accepted: {}",
                node.name, node.devices, fmt::join(names, ", "));
  }
  return topology;
}

const OptionTable<net::CertificateFiles>& service_files() {
  using enum OptionKind;
  static const OptionTable<net::CertificateFiles> options = {
      {{"tls_certificate", kPath,
        "file (PEM) with the service's certificate, and those between it and its CA's: HTTPS in place of HTTP"},
       &net::CertificateFiles::certificate},
      {{"tls_key", kPath, "file (PEM, mode 0600) with the private key of --tls-certificate"},
       &net::CertificateFiles::key},
      {{"tls_ca", kPath, "file (PEM) with CA certificates: clients then need a certificate that one of them signed"},
       &net::CertificateFiles::ca},
  };
  return options;
}

const OptionTable<net::CertificateFiles>& client_files() {
  using enum OptionKind;
  static const OptionTable<net::CertificateFiles> options = {
      {{"tls_ca", kPath,
        "file (PEM) with CA certificates, one of which signed that of an HTTPS service; default: the system's"},
       &net::CertificateFiles::ca},
      {{"tls_certificate", kPath, "file (PEM) with this client's certificate, where the service wants one"},
       &net::CertificateFiles::certificate},
      {{"tls_key", kPath, "file (PEM, mode 0600) with the private key of --tls-certificate"},
       &net::CertificateFiles::key},
  };
  return options;
}

const OptionTable<scheduling::RequestLimits>& request_limits() {
  using enum OptionKind;
  static const OptionTable<scheduling::RequestLimits> options = {
      {{"max_changes_per_tenant", kInteger, "most requests of one tenant in a minute that change jobs or nodes", 1,
        kMaxCap},
       &scheduling::RequestLimits::changes},
      {{"max_forecasts_per_tenant", kInteger, "most forecasts (why, what-if) of one tenant in a minute", 1, kMaxCap},
       &scheduling::RequestLimits::forecasts},
  };
  return options;
}

// Errors name the flag.
Result<gid_t> find_group(const std::string& name) {
  group entry{};
  group* found = nullptr;
  std::vector<char> text(1 << 20);
  ::getgrnam_r(name.c_str(), &entry, text.data(), text.size(), &found);
  if (found != nullptr) return found->gr_gid;
  return fail(ErrorCode::kInvalidInput, "--socket-group: '{}'; accepted: the name of a group of this machine", name);
}

Result<net::HttpListen> read_listen(const SchedulerRequest& request) {
  MOTLEY_ASSIGN(net::HttpListen listen,
                net::read_http_listen({request.listen, request.tls, request.encryption == "off"},
                                      {"--listen", net::tls_flags(), "--encryption"}));
  if (request.socket_group.empty()) return listen;
  if (!listen.address.is_unix()) {
    return fail(ErrorCode::kInvalidInput, "--socket-group: '{}'; accepted with --listen unix:/PATH only",
                request.socket_group);
  }
  MOTLEY_ASSIGN(listen.group, find_group(request.socket_group));
  return listen;
}

}  // namespace

const OptionTable<SchedulerRequest>& SchedulerRequest::options() {
  using enum OptionKind;
  static const OptionTable<SchedulerRequest> options = {
      {"", &SchedulerRequest::topology},
      {{"state_dir", kPath, "directory of the service"}, &SchedulerRequest::state_dir},
      {choice("executor", "what runs the jobs: local: processes of this machine; slurm: Slurm", {"local", "slurm"}),
       &SchedulerRequest::executor},
      {{"partition", kText, "Slurm partition; default: Slurm's"}, &SchedulerRequest::partition},
      {{"sbatch", kTexts, "further option of sbatch for every job, as --sbatch=--account=ml; may be repeated"},
       &SchedulerRequest::sbatch},
      {{"listen", kText,
        "address and port to listen on; port 0: any free one; or unix:/PATH, a socket for this user alone"},
       &SchedulerRequest::listen},
      {{"socket_group", kText, "group whose users may open the socket at unix:/PATH, too; each is a tenant of its own"},
       &SchedulerRequest::socket_group},
      {"", &SchedulerRequest::tls, service_files()},
      {choice("encryption",
              "auto: HTTP only over loopback, elsewhere HTTPS by --tls-certificate; off: HTTP at any address, where "
              "others on the network can read the token",
              {"auto", "off"}),
       &SchedulerRequest::encryption},
      {choice("policy", "scheduling policy", scheduling::live_policy_names()), &SchedulerRequest::policy},
      {objective_option(), &SchedulerRequest::objective},
      {{"slot_duration", kSeconds, "time between the decisions of policies that decide by slots", 0.1, 1e7},
       &SchedulerRequest::slot_seconds},
      {{"preemption_cooldown", kSeconds,
        "time that a job keeps its workers after they changed, before others may preempt it; default: ten times its "
        "restart cost",
        0},
       &SchedulerRequest::preemption_cooldown},
      {{"max_jobs_per_tenant", kInteger, "most jobs of one tenant that are not over", 1, kMaxCap},
       &SchedulerRequest::max_jobs_per_tenant},
      {"", &SchedulerRequest::limits, request_limits()},
  };
  return options;
}

Result<RunningScheduler> start_scheduler(const SchedulerRequest& request) {
  MOTLEY_ASSIGN(const net::HttpListen listen, read_listen(request));
  MOTLEY_ASSIGN(const scheduling::ClusterTopology topology, read_nodes(request));
  std::unique_ptr<scheduling::Executor> executor;
  if (request.executor == "slurm") {
    MOTLEY_ASSIGN(executor, scheduling::make_slurm_executor(slurm_options(request)));
  } else {
    MOTLEY_ASSIGN(executor, scheduling::make_local_executor());
  }
  const std::filesystem::path folder = std::filesystem::absolute(request.state_dir);
  MOTLEY_ASSIGN(auto store, scheduling::Store::open(folder));
  scheduling::ControllerOptions options;
  options.policy = request.policy;
  options.policy_options.slot_seconds = request.slot_seconds;
  options.policy_options.objective = parse_objective(request.objective);
  if (request.preemption_cooldown >= 0) options.preemption_cooldown_seconds = request.preemption_cooldown;
  options.max_jobs_per_tenant = request.max_jobs_per_tenant;
  MOTLEY_ASSIGN(auto controller, scheduling::Controller::make(std::move(store), topology, folder, options));
  const std::string token_file = (folder / "token").string();
  if (!std::filesystem::exists(token_file)) MOTLEY_TRY(net::Secret::generate().write(token_file));
  MOTLEY_ASSIGN(const net::Secret token, net::Secret::from_file(token_file));
  const std::size_t known = controller.records().size();
  RunningScheduler running;
  MOTLEY_ASSIGN(running.service, scheduling::Service::start({listen, token, request.page, request.limits},
                                                            std::move(controller), std::move(executor)));
  const std::string url = running.service->url();
  MOTLEY_TRY(write_file(folder / "address", url + "\n"));
  running.description =
      fmt::format("{} on {}, {} known; {}", format_count(topology.devices(), "device"),
                  format_count(std::ssize(topology.nodes), "node"), format_count(static_cast<int>(known), "job"),
                  listen.address.is_unix() ? fmt::format("listening at {}", url)
                                           : fmt::format("page at {}/ (any name, password in {})", url, token_file));
  return running;
}

namespace {

// The command of a job that trains as a job file says, with so many workers as the scheduler may give it where it is
// resized in place. --run-directory and its value are words of the command, by which the service finds the run's page.
std::vector<std::string> make_train_command(const std::string& job_file, const scheduling::SubmittedJob& job) {
  std::string train =
      "exec $MOTLEY_SRUN \"${@:5}\" train \"$3\" \"$1\" \"$2\" --workers \"$4\" --quiet --resume=auto --overwrite";
  if (job.resize == "in-place") {
    train += fmt::format(" --elastic {}:{}", job.min_workers > 0 ? job.min_workers : job.workers,
                         job.max_workers > 0 ? job.max_workers : job.workers);
  }
  std::vector<std::string> words = {
      "bash",     "-c", train, "motley", "--run-directory", "{folder}", std::filesystem::absolute(job_file).string(),
      "{workers}"};
  words.insert(words.end(), own_program().command.begin(), own_program().command.end());
  return words;
}

// How fast the job is where: as a profile says ("": none), and as TYPE:SPEED do.
Status set_speeds(scheduling::SubmittedJob& job, const std::string& profile, const std::vector<std::string>& speeds) {
  if (!profile.empty()) {
    MOTLEY_ASSIGN(const scheduling::ProfiledJob profiled, read_profiled_job(profile));
    job.compute_seconds = profiled.compute_seconds;
    job.gradient_bytes = profiled.gradient_bytes;
    for (const auto& [type, speed] : profiled.speeds) job.speeds.push_back({type, speed});
  }
  for (const std::string& text : speeds) {
    const std::size_t colon = text.rfind(':');
    const auto speed = parse_number<double>(colon == std::string::npos ? "" : text.substr(colon + 1));
    if (colon == 0 || !speed || *speed <= 0) {
      return fail(ErrorCode::kInvalidInput, "--speed: '{}'; accepted: TYPE:SPEED, such as k80:0.2", text);
    }
    const std::string type = text.substr(0, colon);
    std::erase_if(job.speeds, [&](const auto& known) { return known.type == type; });
    job.speeds.push_back({type, *speed});
  }
  return {};
}

// As WORKERS:SPEEDUP say it.
Status set_speedup(scheduling::SubmittedJob& job, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const std::size_t colon = text.find(':');
    const auto workers = parse_number<int>(text.substr(0, colon));
    const auto speedup = parse_number<double>(colon == std::string::npos ? "" : text.substr(colon + 1));
    if (!workers || *workers < 2 || !speedup || *speedup <= 0) {
      return fail(ErrorCode::kInvalidInput,
                  "--speedup: '{}'; accepted: WORKERS:SPEEDUP with 2 workers or more, such as 4:3.2", text);
    }
    job.speedup.push_back({*workers, *speedup});
  }
  return {};
}

// Tells one submission from all others.
std::string make_submission() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

// In a path it would end before its end, or name something else.
bool is_one_part(const std::string& name) {
  return !name.empty() && name.find_first_of("/?") == std::string::npos;
}

// A node more, as the service takes it.
Result<Json> parse_node(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::size_t second = colon == std::string::npos ? colon : text.find(':', colon + 1);
  const auto devices =
      colon == std::string::npos ? std::nullopt : parse_number<int>(text.substr(colon + 1, second - colon - 1));
  if (colon == 0 || !devices || *devices < 1) {
    return fail(ErrorCode::kInvalidInput,
                "--add-node: '{}'; accepted: NAME:DEVICES or NAME:DEVICES:TYPE, such as new:8 or new:8:v100", text);
  }
  const std::string type = second == std::string::npos ? "" : text.substr(second + 1);
  return Json{{"name", text.substr(0, colon)}, {"devices", *devices}, {"type", type}};
}

}  // namespace

Result<std::string> job_path(const std::string& job) {
  if (is_one_part(job)) return "/v1/jobs/" + job;
  return fail(ErrorCode::kInvalidInput, "JOB: '{}'; accepted: the name or number of a job", job);
}

Result<std::string> node_path(const std::string& node) {
  if (is_one_part(node)) return "/v1/nodes/" + node;
  return fail(ErrorCode::kInvalidInput, "NODE: '{}'; accepted: the name of a node, without '/' and '?'", node);
}

const OptionTable<ClientRequest>& ClientRequest::options() {
  using enum OptionKind;
  static const OptionTable<ClientRequest> options = {
      {{"state_dir", kPath, "directory of the service"}, &ClientRequest::state_dir},
      {{"address", kText,
        "where the service is reached: https://HOST:PORT, http://HOST:PORT, which is in the clear, or unix:/PATH; "
        "default: where it says that it listens"},
       &ClientRequest::address},
      {"", &ClientRequest::tls, client_files()},
  };
  return options;
}

const OptionTable<SubmitRequest>& SubmitRequest::options() {
  using enum OptionKind;
  static const OptionTable<SubmitRequest> options = {
      {"", &SubmitRequest::client},
      {{"file", kPath, "JSON of a job, or of {\"jobs\": [...]} (docs/reference/scheduler-jobs.md)"},
       &SubmitRequest::file},
      {{"train", kPath, "job file of motley train"}, &SubmitRequest::train},
      {"", &SubmitRequest::job},
      {{"profile", kPath,
        "profile of the job (a file of motley profile): iteration times by device type and gradient size; "
        "--estimated-duration is then on the first of its devices"},
       &SubmitRequest::profile},
      {{"speed", kTexts,
        "TYPE:SPEED, relative speed on a device type, where 1 takes --estimated-duration; may be repeated, and the job "
        "cannot run on types that are left out; default: as fast on all"},
       &SubmitRequest::speeds},
      {{"speedup", kTexts,
        "WORKERS:SPEEDUP, how many times as fast it is with so many workers as with one, such as 4:3.2; may be "
        "repeated; default: by --profile, else as many times where its command has {workers} in it, else not at all"},
       &SubmitRequest::speedup},
  };
  return options;
}

Result<Json> submit(SubmitRequest request) {
  const auto post = [&](const std::string& jobs) -> Result<Json> {
    MOTLEY_ASSIGN(SchedulerClient client, connect(request.client));
    return client.post("/v1/jobs", jobs);
  };
  if (!request.file.empty()) {
    MOTLEY_ASSIGN(const std::string jobs, read_file(request.file, kMaxJobsBytes));
    return post(jobs);
  }
  scheduling::SubmittedJob& job = request.job;
  if (!request.train.empty()) {
    MOTLEY_TRY(read_file(request.train));  // it is there
    job.command = make_train_command(request.train, job);
  }
  if (job.command.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "motley schedule submit: there is no job; accepted: a command behind --, --train JOB, or --file FILE");
  }
  if (job.name.empty()) {
    return fail(ErrorCode::kInvalidInput,
                "--name: is not given; accepted: a name for the job, which no other job has "
                "that is not over, such as --name fashion");
  }
  MOTLEY_TRY(set_speeds(job, request.profile, request.speeds));
  MOTLEY_TRY(set_speedup(job, request.speedup));
  job.submission = make_submission();
  job.directory = std::filesystem::current_path().string();
  return post(write_json(job));
}

const OptionTable<LogsRequest>& LogsRequest::options() {
  using enum OptionKind;
  static const OptionTable<LogsRequest> options = {
      {"", &LogsRequest::client},
      {{"attempt", kInteger, "of its attempts this one, from 1; 0: the last one", 0, 1e6}, &LogsRequest::attempt},
      {{"follow", kBoolean, "go on printing until the job is over"}, &LogsRequest::follow},
  };
  return options;
}

Status read_logs(const LogsRequest& request, const std::stop_token& stop,
                 const std::function<void(const std::string&)>& print) {
  MOTLEY_ASSIGN(const std::string path, job_path(request.job));
  MOTLEY_ASSIGN(SchedulerClient client, connect(request.client));
  std::int64_t attempt = request.attempt, offset = 0;
  while (!stop.stop_requested()) {
    MOTLEY_ASSIGN(const Json part, client.get(fmt::format("{}/logs?attempt={}&offset={}", path, attempt, offset)));
    const auto last = part["last_attempt"].get<std::int64_t>();
    if (last == 0 && !request.follow) {
      return fail(ErrorCode::kUnavailable, "job '{}' is {} and has not been started; --follow waits for it",
                  part["name"].get<std::string>(), part["state"].get<std::string>());
    }
    const std::string text = part["text"].get<std::string>();
    print(text);
    offset = part["next"].get<std::int64_t>();
    attempt = part["attempt"].get<std::int64_t>();
    if (!text.empty()) continue;
    const bool has_later = request.attempt == 0 && attempt < last;
    if (request.follow && has_later) {
      ++attempt;
      offset = 0;
    } else if (!request.follow || part["is_over"].get<bool>()) {
      return {};
    } else {
      std::this_thread::sleep_for(std::chrono::duration<double>(kFollowSeconds));
    }
  }
  return fail(ErrorCode::kInterrupted, "interrupted; the job goes on");
}

const OptionTable<WhatIfRequest>& WhatIfRequest::options() {
  using enum OptionKind;
  static const OptionTable<WhatIfRequest> options = {
      {"", &WhatIfRequest::client},
      {{"add_node", kTexts, "NAME:DEVICES or NAME:DEVICES:TYPE, a node more; may be repeated"},
       &WhatIfRequest::add_nodes},
      {{"drain", kTexts, "node to drain; may be repeated"}, &WhatIfRequest::drain},
      {{"cancel", kTexts, "job to cancel; may be repeated"}, &WhatIfRequest::cancel},
      {{"submit", kTexts, "file with the JSON of a job to submit; may be repeated"}, &WhatIfRequest::submit},
  };
  return options;
}

Result<Json> ask_what_if(const WhatIfRequest& request) {
  Json change = {
      {"cancel", request.cancel}, {"drain", request.drain}, {"add_nodes", Json::array()}, {"submit", Json::array()}};
  for (const std::string& text : request.add_nodes) {
    MOTLEY_ASSIGN(change["add_nodes"].emplace_back(), parse_node(text));
  }
  for (const std::string& file : request.submit) {
    MOTLEY_ASSIGN(const std::string text, read_file(file, kMaxJobsBytes));
    MOTLEY_ASSIGN(const auto job, parse_json<scheduling::SubmittedJob>(text, file));
    change["submit"].push_back(Json::parse(write_json(job)));
  }
  MOTLEY_ASSIGN(SchedulerClient client, connect(request.client));
  return client.post("/v1/what-if", change.dump());
}

}  // namespace motley::app
