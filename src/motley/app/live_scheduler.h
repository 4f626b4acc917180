// What `motley schedule serve` and `submit` do: a service that runs live jobs here or on Slurm, and jobs for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "motley/app/schedule_topology.h"
#include "motley/scheduling/executors/slurm_executor.h"
#include "motley/scheduling/service/service.h"

namespace motley::app {

struct SchedulerRequest {
  std::string state = "runs/scheduler";  // the service's folder: its jobs, its token, its address
  std::string listen = "127.0.0.1:29600";
  ClusterRequest topology;
  bool on_slurm = false;
  scheduling::SlurmOptions slurm;
  scheduling::ControllerOptions options;
  std::function<std::string(const scheduling::Controller&)> page;
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
