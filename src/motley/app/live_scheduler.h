// What `motley schedule serve` does, a service that runs live jobs here or on Slurm, and what its users ask of it.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "motley/app/schedule_request.h"
#include "motley/scheduling/executors/executors.h"
#include "motley/scheduling/service/client.h"
#include "motley/scheduling/service/service.h"
#include "motley/serial/options.h"

namespace motley::app {

struct SchedulerRequest {
  std::string state_dir = "runs/scheduler";  // the service's folder: its jobs, its token, its address
  std::string listen = "127.0.0.1:29600";    // or "unix:/PATH"
  std::string socket_group;                  // whose users may open a unix socket, too
  net::CertificateFiles tls;
  std::string encryption = "auto";
  ClusterRequest topology;
  std::string executor = "local";
  std::string partition;            // of Slurm, as below
  std::vector<std::string> sbatch;  // its further options
  std::string policy = scheduling::ControllerOptions().policy;
  std::string objective = "utility";
  double slot_seconds = scheduling::ControllerOptions().policy_options.slot_seconds;
  double preemption_cooldown = -1;  // seconds; below 0: as many of a job's restarts as ControllerOptions says
  int max_jobs_per_tenant = scheduling::ControllerOptions().max_jobs_per_tenant;
  scheduling::RequestLimits limits;
  std::function<std::string(const scheduling::PageInput&)> page;

  static const OptionTable<SchedulerRequest>& options();
};

struct RunningScheduler {
  std::unique_ptr<scheduling::Service> service;
  std::string description;  // of its nodes and jobs, and where its page is
};
// Errors name the flag.
Result<RunningScheduler> start_scheduler(const SchedulerRequest& request);

// Where users find the service: its folder has its address and its token.
struct ClientRequest {
  std::string state_dir = "runs/scheduler";
  std::string address;  // a URL in place of the one in the folder; "": that one
  net::CertificateFiles tls;

  static const OptionTable<ClientRequest>& options();
};
using SchedulerClient = scheduling::Client;
using Json = SchedulerClient::Json;
inline Result<SchedulerClient> connect(const ClientRequest& request) {
  return SchedulerClient::of(request.state_dir, request.address, request.tls);
}
// Where the service has a job, by its name or number, and a node. Errors: kInvalidInput for what can be neither's name.
Result<std::string> job_path(const std::string& job);
Result<std::string> node_path(const std::string& node);

struct SubmitRequest {
  ClientRequest client;
  std::string file;     // JSON of jobs; "": the job below
  std::string train;    // a job file of `motley train`, in place of its command
  std::string profile;  // how fast it is where; "": not known
  std::vector<std::string> speeds;
  std::vector<std::string> speedup;  // WORKERS:SPEEDUP
  scheduling::SubmittedJob job;

  static const OptionTable<SubmitRequest>& options();
};
// The answer of the service. A job that trains goes on from its checkpoint, where it came to have one, with however
// many workers it gets: on Slurm a task each, else processes that it starts itself.
Result<Json> submit(SubmitRequest request);

struct LogsRequest {
  ClientRequest client;
  std::string job;      // its name or its number
  int attempt = 0;      // 0: the last one
  bool follow = false;  // until it is over, attempt after attempt

  static const OptionTable<LogsRequest>& options();  // but for the job
};
// Gives `print` what the job's command has printed, part by part. Errors: kInvalidInput where there is no such job or
// attempt; kUnavailable for a job that has not been started and is not followed; kInterrupted where it is stopped.
Status read_logs(const LogsRequest& request, const std::stop_token& stop,
                 const std::function<void(const std::string&)>& print);

struct WhatIfRequest {
  ClientRequest client;
  std::vector<std::string> submit;  // files
  std::vector<std::string> cancel;
  std::vector<std::string> add_nodes;  // NAME:DEVICES or NAME:DEVICES:TYPE
  std::vector<std::string> drain;

  static const OptionTable<WhatIfRequest>& options();
};
Result<Json> ask_what_if(const WhatIfRequest& request);

}  // namespace motley::app
