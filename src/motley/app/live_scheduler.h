// What `motley schedule serve` and `submit` do: a service that runs live jobs here or on Slurm, and jobs for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/app/schedule_topology.h"
#include "motley/scheduling/executors/executors.h"
#include "motley/scheduling/service/service.h"
#include "motley/serial/options.h"

namespace motley::app {

struct SchedulerRequest {
  std::string state_dir = "runs/scheduler";  // the service's folder: its jobs, its token, its address
  std::string listen = "127.0.0.1:29600";
  ClusterRequest topology;
  std::string executor = "local";
  std::string partition;            // of Slurm, as below
  std::vector<std::string> sbatch;  // its further options
  std::string policy = scheduling::ControllerOptions().policy;
  std::string objective = "utility";
  double slot_seconds = scheduling::ControllerOptions().policy_options.slot_seconds;
  double preemption_cooldown = -1;  // seconds; below 0: as many of a job's restarts as ControllerOptions says
  std::function<std::string(const scheduling::Controller&)> page;

  static const OptionTable<SchedulerRequest>& options();
};

struct RunningScheduler {
  std::unique_ptr<scheduling::Service> service;
  std::string description;  // of its nodes and jobs, and where its page is
};
// Errors name the flag.
Result<RunningScheduler> start_scheduler(const SchedulerRequest& request);

// The command of a job that trains as a job file says. It goes on from its checkpoint, where it came to have one, with
// however many workers it gets: on Slurm a task each, else processes that it starts itself.
std::vector<std::string> make_train_command(const std::string& job_file);

// How fast the job is where: as a profile says ("": none), and as TYPE:SPEED do.
Status set_speeds(scheduling::SubmittedJob& job, const std::string& profile, const std::vector<std::string>& speeds);

}  // namespace motley::app
