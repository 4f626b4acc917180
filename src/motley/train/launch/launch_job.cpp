#include "motley/train/launch/launch_job.h"

#include <fstream>

#include "motley/base/os/file.h"
#include "motley/base/os/own_program.h"
#include "motley/ps/protocol/server_protocol.h"
#include "motley/train/job/job_data.h"
#include "motley/train/job/servers.h"
#include "motley/train/loop/training_loop.h"

namespace motley::train {
namespace {

// Each worker's rack is one of the servers', and each server has a worker.
Status check_racks(const Job& job, const std::vector<ps::ServerAddress>& servers, int workers) {
  std::vector<std::string> names;
  for (const auto& server : servers) names.push_back(net::to_string(server.endpoint));
  const std::vector<int> racks(job.gradient_sync.racks.begin(), job.gradient_sync.racks.end());
  const auto plan = ps::make_rack_plan(names, racks, workers);
  return plan ? Status{} : fail(plan.error().within("gradient_sync.racks"));
}

// What is wrong with the servers and racks of a job with gradient_sync.method parameter-server, as far as the keys
// tell. `servers`: those that it names.
Status check_servers(const Job& job, const std::vector<ps::ServerAddress>& servers, int workers) {
  const GradientSyncSpec& sync = job.gradient_sync;
  const auto refuse = [](const std::string& text) { return fail(ErrorCode::kInvalidInput, "{}", text); };
  if (job.model.dtype == "float64") {
    return refuse(
        "model.dtype: float64; accepted with gradient_sync.method parameter-server: float32, in which servers keep "
        "weights");
  }
  if (sync.placement == "colocated") {
    if (sync.servers.empty() && sync.racks.empty()) return {};
    return refuse(
        "gradient_sync.placement: colocated, where servers run beside the workers; accepted with gradient_sync.servers "
        "or gradient_sync.racks: auto, central, sharded, hierarchical");
  }
  if (sync.placement != "hierarchical" && sync.racks.empty()) return {};
  if (sync.consistency != "bsp") {
    return refuse(
        fmt::format("gradient_sync.consistency: {}; accepted with gradient_sync.racks or gradient_sync.placement "
                    "hierarchical: bsp, as a rack's server adds up what its workers push together",
                    sync.consistency));
  }
  if (sync.comm_dtype == "int8" || sync.comm_dtype == "top-k" || sync.comm_dtype == "auto") {
    return refuse(
        fmt::format("gradient_sync.comm_dtype: {}; accepted with gradient_sync.racks or gradient_sync.placement "
                    "hierarchical: float32, bfloat16 and float16, in which a rack's server passes sums on",
                    sync.comm_dtype));
  }
  if (sync.servers.empty()) {
    return refuse(
        "gradient_sync.servers: empty; accepted with gradient_sync.racks: 'host:port' of a `motley server` in each "
        "rack");
  }
  return check_racks(job, servers, workers);
}

// What the server of a job's own is started with; empty for a job that needs none.
std::vector<std::string> server_arguments(const Job& job, const RunDirectory& run) {
  const bool is_served = job.gradient_sync.method == "parameter-server" || has_served_table(job);
  if (!is_served || !job.gradient_sync.servers.empty() || job.gradient_sync.placement == "colocated") return {};
  std::vector<std::string> arguments = {"server", "--listen", "127.0.0.1:0", "--threads",
                                        std::to_string(job.gradient_sync.server_threads)};
  if (has_served_table(job)) {
    arguments.insert(arguments.end(), {"--embedding-dir", (run.folder() / "embeddings").string()});
  }
  const net::CertificateFiles& tls = job.network.tls;
  for (const auto& [flag, file] :
       {std::pair("--tls-certificate", tls.certificate), {"--tls-key", tls.key}, {"--tls-ca", tls.ca}}) {
    if (!file.empty()) arguments.insert(arguments.end(), {flag, file});
  }
  return arguments;
}

}  // namespace

Status check_inputs(const ResolvedJob& resolved) {
  const auto& [job, cluster, plan] = resolved;
  const std::string& method = job.gradient_sync.method;
  const bool names_servers = (method == "parameter-server" || method == "auto") && !job.gradient_sync.servers.empty();
  std::vector<ps::ServerAddress> servers;
  if (names_servers) {
    MOTLEY_ASSIGN(servers, read_servers(job));
  }
  const int workers = static_cast<int>(cluster.workers.size());
  if (method == "parameter-server") {
    MOTLEY_TRY(check_servers(job, servers, workers));
  } else if (names_servers && !job.gradient_sync.racks.empty()) {
    MOTLEY_TRY(check_racks(job, servers, workers));
  }
  if (!job.model.path.empty() && !std::ifstream(job.model.path)) {
    return fail(ErrorCode::kInvalidInput, "model.path: cannot read '{}': {}", job.model.path, errno_text());
  }
  MOTLEY_TRY(check_data(job));
  MOTLEY_ASSIGN(data::BatchSplitOptions split, make_split_options(job, cluster, false));
  if (!plan) MOTLEY_TRY(data::BatchSplitter::create(std::move(split)));
  return {};
}

Result<Job> prepare_job(Job job) {
  MOTLEY_ASSIGN(ResolvedJob resolved, resolve_job(std::move(job), true));
  MOTLEY_TRY(check_inputs(resolved));
  std::int64_t& workers = resolved.job.execution.workers;
  if (workers == 0) workers = static_cast<std::int64_t>(resolved.cluster.workers.size());
  return std::move(resolved.job);
}

double stop_seconds(const Job& job) {
  return LaunchRules().stop_seconds + job.deadline.step;
}

Status launch_job(const Job& job, const RunDirectory& run, bool resume, LaunchOptions options) {
  MOTLEY_TRY(write_file(run.tried_job_file(), format_job(job)));
  options.program = own_program();
  MOTLEY_ASSIGN(const ResolvedJob resolved, resolve_job(job, true));
  options.workers = static_cast<int>(job.execution.workers);
  options.max_workers = static_cast<int>(resolved.cluster.workers.size());
  options.min_workers = job.execution.elastic_range().min;
  if (options.min_workers > 0) options.replacements = static_cast<int>(job.execution.replacements);
  options.stop_seconds = stop_seconds(job);
  options.join_seconds = job.deadline.join;
  if (job.gradient_sync.consistency != "bsp") options.steps_to_stop = static_cast<int>(kMaxStepsApart);
  options.worker_arguments = {"train", run.tried_job_file().string(), "--run-directory", run.folder().string()};
  if (resume) options.worker_arguments.push_back("--resume");
  options.server_arguments = server_arguments(job, run);
  return launch_workers(std::move(options), run);
}

}  // namespace motley::train
