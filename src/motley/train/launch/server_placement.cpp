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

// Of the session's ranks: an elastic job may begin with its first ones.
std::vector<int> read_racks(const Job& job, const net::Session& session) {
  std::vector<int> racks(job.gradient_sync.racks.begin(), job.gradient_sync.racks.end());
  const auto size = static_cast<std::size_t>(session.membership().size());
  if (!job.execution.elastic.empty() && racks.size() > size) racks.resize(size);
  return racks;
}

// The fastest of what the servers allow, which are one in each rack.
Result<Placement> choose(const Job& job, net::Session& session, collective::Group& group, double model_bytes,
                         const std::vector<ps::ServerAddress>& servers, const Deadline& deadline) {
  const std::vector<int> racks = read_racks(job, session);
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

Result<std::vector<ps::ServerAddress>> list_servers(const Job& job) {
  MOTLEY_ASSIGN(auto servers, read_servers(job));
  if (job.gradient_sync.placement == "central") servers.erase(servers.begin() + 1, servers.end());
  return servers;
}

Result<std::unique_ptr<ps::Service>> start_beside_workers(int threads, const net::Session& session,
                                                          collective::Group& group, const net::Secret& secret,
                                                          const Deadline& deadline,
                                                          std::vector<ps::ServerAddress>& servers) {
  const net::Membership& membership = session.membership();
  const auto own = static_cast<std::size_t>(membership.rank);
  const auto first = std::ranges::find(membership.members, membership.members[own].host_id, &net::Member::host_id);
  std::unique_ptr<ps::Service> service;
  double port = 0;
  if (first == membership.members.begin() + membership.rank) {
    ps::ServiceOptions options;
    options.listen.host = session.options().bind_host;
    options.cores = threads;
    options.encryption = session.options().encryption;
    MOTLEY_ASSIGN(service, ps::Service::start(options, secret));
    port = service->endpoint().port;
  }
  MOTLEY_ASSIGN(const auto ports, group.all_gather(std::span(&port, 1), deadline));
  for (std::size_t rank = 0; rank < ports.size(); ++rank) {
    if (ports[rank] == 0) continue;
    servers.push_back({{membership.members[rank].address, static_cast<std::uint16_t>(ports[rank])}, secret});
  }
  return service;
}

Result<std::unique_ptr<ps::Service>> place_servers(const Job& job, net::Session& session, collective::Group& group,
                                                   const net::Secret& secret, double model_bytes,
                                                   ps::ServerOptions& options) {
  const Deadline deadline = Deadline::after(job.deadline.join);
  std::string placement = job.gradient_sync.placement;
  if (placement == "colocated") {
    const int threads = std::max(1, static_cast<int>(job.gradient_sync.server_threads));
    MOTLEY_ASSIGN(auto service, start_beside_workers(threads, session, group, secret, deadline, options.servers));
    return service;
  }
  MOTLEY_ASSIGN(options.servers, list_servers(job));
  if (placement == "auto" && !job.gradient_sync.racks.empty() && options.servers.size() > 1) {
    MOTLEY_ASSIGN(const Placement best, choose(job, session, group, model_bytes, options.servers, deadline));
    placement = planning::to_string(best);
  }
  if (options.servers.size() > 1 && placement != "hierarchical") {
    MOTLEY_ASSIGN(options.server_speeds, measure_servers(session, group, options.servers, deadline));
    if (session.membership().rank == 0) {
      std::vector<std::string> speeds;
      for (const double speed : options.server_speeds) speeds.push_back(format_bytes(speed) + "/s");
      spdlog::info("the servers' links carry {}; so the model is divided", fmt::join(speeds, ", "));
    }
  }
  if (placement == "hierarchical") options.rank_racks = read_racks(job, session);
  return nullptr;
}

}  // namespace motley::train
