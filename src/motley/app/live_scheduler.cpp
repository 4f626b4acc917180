#include "motley/app/live_scheduler.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "motley/base/os/descriptor.h"
#include "motley/base/os/file.h"
#include "motley/net/socket.h"
#include "motley/scheduling/executors/local_executor.h"
#include "motley/scheduling/trace/profiled_job.h"

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

// The nodes that --cluster names, or all that the executor has. Those of Slurm must be Slurm's.
Result<scheduling::ClusterTopology> read_nodes(const SchedulerRequest& request) {
  if (!request.on_slurm) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    return make_topology(request.topology, scheduling::uniform(1, static_cast<int>(cores)));
  }
  MOTLEY_ASSIGN(const scheduling::ClusterTopology there, scheduling::slurm_topology(request.slurm));
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

Result<RunningScheduler> start_scheduler(const SchedulerRequest& request) {
  MOTLEY_ASSIGN(const scheduling::ClusterTopology topology, read_nodes(request));
  std::unique_ptr<scheduling::Executor> executor;
  if (request.on_slurm) {
    MOTLEY_ASSIGN(executor, scheduling::make_slurm_executor(request.slurm));
  } else {
    executor = scheduling::make_local_executor();
  }
  const std::filesystem::path folder = std::filesystem::absolute(request.state);
  MOTLEY_ASSIGN(auto store, scheduling::Store::open(folder));
  MOTLEY_ASSIGN(auto controller,
                scheduling::DurableController::make(std::move(store), topology, folder, request.options));
  MOTLEY_ASSIGN(const net::Endpoint listen, net::parse_endpoint(request.listen));
  MOTLEY_ASSIGN(const net::Secret token, token_in(folder));
  const std::size_t known = controller.controller().records().size();
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
    MOTLEY_ASSIGN(const model::Profile measured, model::read_profile(profile));
    const scheduling::ProfiledJob profiled = scheduling::profiled_job(measured);
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
