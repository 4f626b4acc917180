// Two racks of two workers behind 1 Gb/s and a server that is as fast as the machine, joined by 500 Mb/s. The same
// servers are used flat, each with half of the model, and in a hierarchy; both in turn.
#include "bench/racks_bench.h"

#include <algorithm>
#include <cmath>

#include "bench/exchange_job.h"
#include "bench/network_namespaces.h"
#include "bench/server_process.h"
#include "motley/base/units.h"
#include "motley/planning/cost/placement.h"

namespace motley::bench {
namespace {

constexpr std::size_t kModelBytes = 46'800'000;
constexpr int kBuckets = 12;
constexpr int kRacks = 2;
constexpr int kWorkersOfARack = 2;
constexpr double kLinkBytesPerSecond = 125e6;
constexpr double kUplinkBytesPerSecond = 62.5e6;
constexpr double kServerBytesPerSecond = 2e9;  // of the machine; never the narrowest
// Of what a link carries while as much goes either way: the rest are the headers of a segment and half an
// acknowledgement, of 66 bytes each.
constexpr double kPayloadShare = 1448.0 / (1448 + 66 + 66 / 2);

}  // namespace

Result<std::vector<BenchRow>> racks_rows(const BenchOptions& options) {
  const auto say = [&](const std::string& line) {
    if (options.progress) options.progress(line);
  };
  auto network = NetworkNamespaces::create_racks(kRacks, kWorkersOfARack, kLinkBytesPerSecond, kUplinkBytesPerSecond);
  if (!network) {
    say(fmt::format("netns-two-racks left out: {}", network.error().message));
    return std::vector<BenchRow>{};
  }
  const auto place = [&](int index) {
    return ExchangeJob::Place{(*network)->prefix(index), (*network)->address(index)};
  };
  std::vector<ExchangeJob::Place> places;
  for (int rank = 0; rank < kRacks * kWorkersOfARack; ++rank) places.push_back(place(rank));
  std::vector<ServerProcess> servers;
  for (int rack = 0; rack < kRacks; ++rack) {
    MOTLEY_ASSIGN(auto server, ServerProcess::start(options, 1, place(kRacks * kWorkersOfARack + rack)));
    servers.push_back(std::move(server));
  }
  std::string buckets;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    buckets += fmt::format("{}{}", bucket == 0 ? "" : ",", kModelBytes / kBuckets / 4 * 4);
  }
  std::vector<std::string> environment = ServerProcess::environment(servers);
  MOTLEY_ASSIGN(ExchangeJob flat, ExchangeJob::start(options, "ps-tcp", buckets, places, environment, "flat"));
  environment.emplace_back("MOTLEY_BENCH_RACKS=0,0,1,1");
  MOTLEY_ASSIGN(ExchangeJob racks, ExchangeJob::start(options, "ps-tcp", buckets, places, environment, "racks"));
  MOTLEY_ASSIGN(
      const Comparison measured,
      compare(options.quick ? 3 : 9, [&] { return racks.run("round 0 1"); }, [&] { return flat.run("round 0 1"); }));

  const planning::PlacementProblem problem = {.model_bytes = static_cast<double>(kModelBytes),
                                              .rack_workers = std::vector<int>(kRacks, kWorkersOfARack),
                                              .worker_bytes_per_second = kLinkBytesPerSecond * kPayloadShare,
                                              .server_bytes_per_second = kServerBytesPerSecond,
                                              .uplink_bytes_per_second = kUplinkBytesPerSecond * kPayloadShare,
                                              .servers = kRacks,
                                              .a_server_in_each_rack = true};
  const double hierarchical = planning::hierarchical_seconds(problem);
  const double sharded = planning::sharded_seconds(problem);
  const double error = std::max(std::abs(hierarchical / measured.ours - 1), std::abs(sharded / measured.peer - 1));
  const std::string note =
      fmt::format("a round hierarchical {} (formula {}), flat {} (formula {}); links emulated with htb",
                  format_seconds(measured.ours), format_seconds(hierarchical), format_seconds(measured.peer),
                  format_seconds(sharded));
  std::vector<BenchRow> rows = {
      {"netns-two-racks", "hierarchical_prediction_error", error, "", false, 0.10, {}, {}, note},
      {"netns-two-racks",
       "speedup_over_flat",
       1 / measured.ratio,
       "",
       true,
       {},
       sharded / hierarchical,
       {},
       "the limit is the formulas'"}};
  for (const BenchRow& row : rows) say(fmt::format("{} {} {:.4g}", row.name, row.metric, row.value));
  return rows;
}

}  // namespace motley::bench
