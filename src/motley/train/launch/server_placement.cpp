// Choosing by measured links, with the formulas of cost/placement.
#include "motley/train/launch/server_placement.h"

#include <algorithm>

#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/net/socket.h"
#include "motley/planning/cost/placement.h"
#include "motley/train/job/servers.h"
#include "motley/train/sync/link_probe.h"

namespace motley::train {
namespace {

using planning::Placement;

std::vector<int> read_racks(const Job& job) {
  return {job.gradient_sync.racks.begin(), job.gradient_sync.racks.end()};
}

// A server in the process of the first rank of each host; all ranks learn where they listen.
Result<std::unique_ptr<ps::Service>> start_beside_workers(const Job& job, const net::Session& session,
                                                          collective::Group& group, const net::Secret& secret,
                                                          const Deadline& deadline,
                                                          std::vector<ps::ServerAddress>& servers) {
  const net::Membership& membership = session.membership();
  const auto own = static_cast<std::size_t>(membership.rank);
  const auto first = std::ranges::find(membership.members, membership.members[own].host_id, &net::Member::host_id);
  std::unique_ptr<ps::Service> service;
  double port = 0;
  if (first == membership.members.begin() + membership.rank) {
    const int cores = std::max(1, static_cast<int>(job.gradient_sync.server_threads));
    MOTLEY_ASSIGN(service, ps::Service::start({.listen = {session.options().bind_host, 0}, .cores = cores}, secret));
    port = service->endpoint().port;
  }
  MOTLEY_ASSIGN(const auto ports, group.all_gather(std::span(&port, 1), deadline));
  for (std::size_t rank = 0; rank < ports.size(); ++rank) {
    if (ports[rank] == 0) continue;
    servers.push_back({{membership.members[rank].address, static_cast<std::uint16_t>(ports[rank])}, secret});
  }
  return service;
}

// The fastest of what the servers allow, which are one in each rack.
Result<Placement> choose(const Job& job, net::Session& session, collective::Group& group, double model_bytes,
                         const std::vector<ps::ServerAddress>& servers, const Deadline& deadline) {
  const std::vector<int> racks = read_racks(job);
  MOTLEY_ASSIGN(const RackSpeeds speeds, measure_racks(session, group, servers, racks, deadline));
  planning::PlacementProblem problem = {.model_bytes = model_bytes,
                                        .worker_bytes_per_second = speeds.worker_bytes_per_second,
                                        .server_bytes_per_second = speeds.server_bytes_per_second,
                                        .uplink_bytes_per_second = speeds.uplink_bytes_per_second,
                                        .servers = static_cast<int>(servers.size()),
                                        .a_server_in_each_rack = true};
  problem.rack_workers.resize(servers.size());
  for (const int rack : racks) ++problem.rack_workers[static_cast<std::size_t>(rack)];
  const Placement among[] = {Placement::kSharded, Placement::kHierarchical};
  MOTLEY_ASSIGN(const auto ranked, planning::rank_placements(problem, among));
  if (session.membership().rank == 0) {
    spdlog::info("gradient_sync.placement auto: {}, expected to be the fastest of {}",
                 planning::to_string(ranked.front().placement), planning::explain(ranked, problem));
  }
  return ranked.front().placement;
}

}  // namespace

std::vector<std::string> own_server_arguments(const Job& job, const RunDirectory& run) {
  const bool is_served = job.gradient_sync.method == "parameter-server" || has_served_table(job);
  if (!is_served || !job.gradient_sync.servers.empty() || job.gradient_sync.placement == "colocated") return {};
  std::vector<std::string> arguments = {"server", "--listen", "127.0.0.1:0", "--threads",
                                        std::to_string(job.gradient_sync.server_threads)};
  if (has_served_table(job)) {
    arguments.insert(arguments.end(), {"--embedding-dir", (run.folder() / "embeddings").string()});
  }
  return arguments;
}

Status check_placement(const Job& job, int workers) {
  if (job.gradient_sync.method != "parameter-server") return {};
  const std::string& placement = job.gradient_sync.placement;
  if (placement == "colocated") {
    if (job.gradient_sync.servers.empty() && job.gradient_sync.racks.empty()) return {};
    return fail(
        ErrorCode::kInvalidInput,
        "gradient_sync.placement: colocated, where servers run beside the workers; accepted with gradient_sync.servers "
        "or gradient_sync.racks: auto, central, sharded, hierarchical");
  }
  const bool racked = placement == "hierarchical" || !job.gradient_sync.racks.empty();
  if (racked && job.gradient_sync.consistency != "bsp") {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.consistency: {}; accepted with gradient_sync.racks or gradient_sync.placement "
                "hierarchical: bsp, as a "
                "rack's server adds up what its workers push together",
                job.gradient_sync.consistency);
  }
  if (racked && (job.gradient_sync.comm_dtype == "int8" || job.gradient_sync.comm_dtype == "top-k" ||
                 job.gradient_sync.comm_dtype == "auto")) {
    return fail(ErrorCode::kInvalidInput,
                "gradient_sync.comm_dtype: {}; accepted with gradient_sync.racks or gradient_sync.placement "
                "hierarchical: float32, bfloat16 "
                "and float16, in which a rack's server passes sums on",
                job.gradient_sync.comm_dtype);
  }
  if (!job.gradient_sync.servers.empty()) {
    MOTLEY_ASSIGN(const auto servers, read_servers(job));
    std::vector<std::string> names;
    for (const auto& server : servers) names.push_back(net::to_string(server.endpoint));
    if (!racked) return {};
    const auto plan = ps::make_rack_plan(names, read_racks(job), workers);
    return plan ? Status{} : fail(plan.error().within("gradient_sync.racks"));
  }
  if (!racked) return {};
  return fail(
      ErrorCode::kInvalidInput,
      "gradient_sync.servers: empty; accepted with gradient_sync.racks: 'host:port' of a `motley server` in each rack");
}

Result<std::unique_ptr<ps::Service>> place_servers(const Job& job, net::Session& session, collective::Group& group,
                                                   const net::Secret& secret, double model_bytes,
                                                   ps::ServerOptions& options) {
  const Deadline deadline = Deadline::after(job.deadline.join);
  std::string placement = job.gradient_sync.placement;
  if (placement == "colocated") {
    MOTLEY_ASSIGN(auto service, start_beside_workers(job, session, group, secret, deadline, options.servers));
    return service;
  }
  MOTLEY_ASSIGN(options.servers, read_servers(job));
  if (placement == "auto" && !job.gradient_sync.racks.empty() && options.servers.size() > 1) {
    MOTLEY_ASSIGN(const Placement best, choose(job, session, group, model_bytes, options.servers, deadline));
    placement = planning::to_string(best);
  }
  if (placement == "central") options.servers.erase(options.servers.begin() + 1, options.servers.end());
  if (options.servers.size() > 1 && placement != "hierarchical") {
    MOTLEY_ASSIGN(options.server_speeds, measure_servers(session, group, options.servers, deadline));
    if (session.membership().rank == 0) {
      std::vector<std::string> speeds;
      for (const double speed : options.server_speeds) speeds.push_back(format_bytes(speed) + "/s");
      spdlog::info("the servers' links carry {}; so the model is divided", fmt::join(speeds, ", "));
    }
  }
  if (placement == "hierarchical") options.rank_racks = read_racks(job);
  return nullptr;
}

}  // namespace motley::train
