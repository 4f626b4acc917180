#include "motley/app/live_scheduler.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "motley/app/profiled_job.h"
#include "motley/app/schedule_objective.h"
#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/net/socket.h"
#include "motley/scheduling/executors/executors.h"
#include "motley/scheduling/policies/policies.h"

namespace motley::app {
namespace {

// The folder's token, made where there is none.
Result<net::Secret> token_in(const std::filesystem::path& folder) {
  const std::string file = (folder / "token").string();
  const Descriptor created(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (created.valid()) {
    const std::string text = net::Secret::generate().hex() + "\n";
    if (::write(created.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(created.get()) != 0) {
      return fail(ErrorCode::kIo, "{}: {}", file, errno_text());
    }
  } else if (errno != EEXIST) {
    return fail(ErrorCode::kIo, "{}: {}", file, errno_text());
  }
  return net::Secret::from_file(file);
}

scheduling::SlurmOptions slurm_options(const SchedulerRequest& request) {
  return {.partition = request.partition, .options = request.sbatch};
}

// The nodes that --cluster names, or all that the executor has. Those of Slurm must be Slurm's.
Result<scheduling::ClusterTopology> read_nodes(const SchedulerRequest& request) {
  if (request.executor != "slurm") {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    return make_topology(request.topology, scheduling::uniform(1, static_cast<int>(cores)));
  }
  MOTLEY_ASSIGN(const scheduling::ClusterTopology there, scheduling::slurm_topology(slurm_options(request)));
  MOTLEY_ASSIGN(scheduling::ClusterTopology topology, make_topology(request.topology, there));
  for (const scheduling::Node& node : topology.nodes) {
    const auto known = std::ranges::find(there.nodes, node.name, &scheduling::Node::name);
    if (known != there.nodes.end() && node.devices <= known->devices) continue;
    std::vector<std::string> names;
    for (const scheduling::Node& one : there.nodes) names.push_back(fmt::format("{} ({})", one.name, one.devices));
    return fail(ErrorCode::kInvalidInput, "--cluster: node '{}' with {} devices is none of Slurm's; accepted: {}",
                node.name, node.devices, fmt::join(names, ", "));
  }
  return topology;
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
      {{"listen", kText, "address and port to listen on; port 0: any free one"}, &SchedulerRequest::listen},
      {choice("policy", "scheduling policy", scheduling::live_policy_names()), &SchedulerRequest::policy},
      {objective_option(), &SchedulerRequest::objective},
      {{"slot_duration", kSeconds, "time between the decisions of policies that decide by slots", 0.1, 1e7},
       &SchedulerRequest::slot_seconds},
      {{"preemption_cooldown", kSeconds,
        "time that a job keeps its workers after they changed, before others may preempt it; default: ten times its "
        "restart cost",
        0},
       &SchedulerRequest::preemption_cooldown},
  };
  return options;
}

Result<RunningScheduler> start_scheduler(const SchedulerRequest& request) {
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
  MOTLEY_ASSIGN(auto controller, scheduling::Controller::make(std::move(store), topology, folder, options));
  MOTLEY_ASSIGN(const net::Endpoint listen, net::parse_endpoint(request.listen));
  MOTLEY_ASSIGN(const net::Secret token, token_in(folder));
  const std::size_t known = controller.records().size();
  RunningScheduler running;
  MOTLEY_ASSIGN(running.service,
                scheduling::Service::start({listen, token, request.page}, std::move(controller), std::move(executor)));
  const std::string address = net::to_string(running.service->endpoint());
  MOTLEY_TRY(write_file(folder / "address", address + "\n"));
  running.description =
      fmt::format("{} devices on {} nodes, {} jobs known; page at http://{}/ (any name, password in {})",
                  topology.devices(), topology.nodes.size(), known, address, (folder / "token").string());
  return running;
}

std::vector<std::string> make_train_command(const std::string& job_file) {
  return {"bash",
          "-c",
          "exec $MOTLEY_SRUN \"$0\" train \"$2\" --run-directory \"$1\" --workers \"$3\" --quiet --resume=auto "
          "--overwrite",
          std::filesystem::read_symlink("/proc/self/exe").string(),
          "{folder}",
          std::filesystem::absolute(job_file).string(),
          "{workers}"};
}

Status set_speeds(scheduling::SubmittedJob& job, const std::string& profile, const std::vector<std::string>& speeds) {
  if (!profile.empty()) {
    MOTLEY_ASSIGN(const scheduling::ProfiledJob profiled, read_profiled_job(profile));
    job.compute_seconds = profiled.compute_seconds;
    job.gradient_bytes = profiled.gradient_bytes;
    for (const auto& [type, speed] : profiled.speeds) job.speeds.push_back({type, speed});
  }
  for (const std::string& text : speeds) {
    const std::size_t colon = text.rfind(':');
    char* end = nullptr;
    const double speed = colon == std::string::npos ? 0 : std::strtod(text.c_str() + colon + 1, &end);
    if (colon == 0 || !(speed > 0) || !std::isfinite(speed) || *end != '\0') {
      return fail(ErrorCode::kInvalidInput, "--speed: '{}'; accepted: TYPE:SPEED, such as k80:0.2", text);
    }
    const std::string type = text.substr(0, colon);
    std::erase_if(job.speeds, [&](const auto& known) { return known.type == type; });
    job.speeds.push_back({type, speed});
  }
  return {};
}

}  // namespace motley::app
