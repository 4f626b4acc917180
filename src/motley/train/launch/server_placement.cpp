// Choosing by measured links, with the formulas of cost/placement.
#include "motley/train/launch/server_placement.h"

#include <algorithm>

#include "motley/base/log.h"
#include "motley/base/units.h"
#include "motley/collective/link_probe.h"
#include "motley/net/socket.h"
#include "motley/planning/cost/placement.h"
#include "motley/train/job/job_parts.h"

namespace motley::train {
namespace {

using planning::Placement;

std::vector<int> racks_of(const Job& job) {
  return {job.exchange_racks.begin(), job.exchange_racks.end()};
}

// A server in the process of the first rank of each host; all ranks learn where they listen.
Result<std::unique_ptr<ps::Service>> start_beside_workers(const Job& job, const net::Session& session,
                                                          collective::Group& group, const net::Secret& secret,
                                                          const Deadline& deadline,
                                                          std::vector<collective::ServerAddress>& servers) {
  const net::Membership& membership = session.membership();
  const auto own = static_cast<std::size_t>(membership.rank);
  const auto first = std::ranges::find(membership.members, membership.members[own].host_id, &net::Member::host_id);
  std::unique_ptr<ps::Service> service;
  double port = 0;
  if (first == membership.members.begin() + membership.rank) {
    const int cores = std::max(1, static_cast<int>(job.exchange_server_cores));
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
                         const std::vector<collective::ServerAddress>& servers, const Deadline& deadline) {
  const std::vector<int> racks = racks_of(job);
  MOTLEY_ASSIGN(const collective::RackSpeeds speeds,
                collective::measure_racks(session, group, servers, racks, deadline));
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
    spdlog::info("exchange.placement auto: {}, expected to be the fastest of {}",
                 planning::to_string(ranked.front().placement), planning::explain(ranked, problem));
  }
  return ranked.front().placement;
}

}  // namespace

std::vector<std::string> own_server_arguments(const Job& job, const RunDirectory& run) {
  const bool is_served = job.exchange_method == "ps" || has_served_table(job);
  if (!is_served || !job.exchange_servers.empty() || job.exchange_placement == "colocated") return {};
  std::vector<std::string> arguments = {"server", "--listen", "127.0.0.1:0", "--cores",
                                        std::to_string(job.exchange_server_cores)};
  if (has_served_table(job)) {
    arguments.insert(arguments.end(), {"--tables", (run.folder() / "tables").string()});
  }
  return arguments;
}

Status check_placement(const Job& job, int workers) {
  if (job.exchange_method != "ps") return {};
  const std::string& placement = job.exchange_placement;
  if (placement == "colocated") {
    if (job.exchange_servers.empty() && job.exchange_racks.empty()) return {};
    return fail(ErrorCode::kInvalidInput,
                "exchange.placement: colocated, where servers run beside the workers; accepted with exchange.servers "
                "or exchange.racks: auto, central, sharded, hierarchical");
  }
  const bool racked = placement == "hierarchical" || !job.exchange_racks.empty();
  if (racked && job.exchange_consistency != "bsp") {
    return fail(ErrorCode::kInvalidInput,
                "exchange.consistency: {}; accepted with exchange.racks or exchange.placement hierarchical: bsp, as a "
                "rack's server adds up what its workers push together",
                job.exchange_consistency);
  }
  if (racked && (job.exchange_wire == "int8" || job.exchange_wire == "top-k" || job.exchange_wire == "auto")) {
    return fail(ErrorCode::kInvalidInput,
                "exchange.wire: {}; accepted with exchange.racks or exchange.placement hierarchical: float32, bfloat16 "
                "and float16, in which a rack's server passes sums on",
                job.exchange_wire);
  }
  if (!job.exchange_servers.empty()) {
    MOTLEY_ASSIGN(const auto servers, servers_of(job));
    std::vector<std::string> names;
    for (const auto& server : servers) names.push_back(net::to_string(server.endpoint));
    if (!racked) return {};
    const auto plan = collective::make_rack_plan(names, racks_of(job), workers);
    return plan ? Status{} : fail(plan.error().within("exchange.racks"));
  }
  if (!racked) return {};
  return fail(ErrorCode::kInvalidInput,
              "exchange.servers: empty; accepted with exchange.racks: 'host:port' of a `motley server` in each rack");
}

Result<std::unique_ptr<ps::Service>> place_servers(const Job& job, net::Session& session, collective::Group& group,
                                                   const net::Secret& secret, double model_bytes,
                                                   collective::ExchangeOptions& options) {
  const Deadline deadline = Deadline::after(job.join_seconds);
  std::string placement = job.exchange_placement;
  if (placement == "colocated") {
    MOTLEY_ASSIGN(auto service, start_beside_workers(job, session, group, secret, deadline, options.servers));
    return service;
  }
  MOTLEY_ASSIGN(options.servers, servers_of(job));
  if (placement == "auto" && !job.exchange_racks.empty() && options.servers.size() > 1) {
    MOTLEY_ASSIGN(const Placement best, choose(job, session, group, model_bytes, options.servers, deadline));
    placement = planning::to_string(best);
  }
  if (placement == "central") options.servers.erase(options.servers.begin() + 1, options.servers.end());
  if (options.servers.size() > 1 && placement != "hierarchical") {
    MOTLEY_ASSIGN(options.server_speeds, collective::measure_servers(session, group, options.servers, deadline));
    if (session.membership().rank == 0) {
      std::vector<std::string> speeds;
      for (const double speed : options.server_speeds) speeds.push_back(format_bytes(speed) + "/s");
      spdlog::info("the servers' links carry {}; so the model is divided", fmt::join(speeds, ", "));
    }
  }
  if (placement == "hierarchical") options.rack_of_rank = racks_of(job);
  return nullptr;
}

}  // namespace motley::train
