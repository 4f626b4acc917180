// Ranks that reach the server over TCP: loopback, and links of 1 Gb/s.
#include <algorithm>

#include "bench/compression_bench.h"
#include "bench/network_namespaces.h"
#include "bench/ps_groups.h"
#include "motley/base/units.h"
#include "motley/ps/dense/update_speed.h"

namespace motley::bench {
namespace {

class PsNetwork {
 public:
  explicit PsNetwork(const BenchOptions& options) : options_(options), pairs_(pairs(options)), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_TRY(over_loopback());
    MOTLEY_TRY(over_shaped_links());
    return rows_.take();
  }

 private:
  Status over_loopback() {
    double worst = 0;
    std::string note;
    for (const int ranks : {2, 4}) {
      MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
      MOTLEY_ASSIGN(ExchangeJob central, served_job(options_, server, "ps-tcp", ranks));
      MOTLEY_ASSIGN(ExchangeJob ring,
                    ExchangeJob::start(options_, "tcp-ring-barrier", std::to_string(kModelBytes), here(ranks)));
      MOTLEY_ASSIGN(ExchangeJob gloo,
                    ExchangeJob::start_gloo(options_, ranks, std::to_string(kModelBytes), {"--barrier"}));
      const auto ours = [&] { return central.run("round 0 2"); };
      // As many bytes as go to and from the server, and the arithmetic in turn with them.
      const auto stream = [&]() -> Result<double> {
        MOTLEY_ASSIGN(const double sent, ring.run(fmt::format("stream {} {}", 2 * kModelBytes, kModelBytes)));
        return sent + ps::seconds_per_pass(ranks, kModelBytes, kServerCores);
      };
      MOTLEY_ASSIGN(const Comparison limit, compare(pairs_, ours, stream));
      rows_.add(
          fmt::format("tcp-loopback-N{}", ranks), "share_of_limit", 1 / limit.ratio, "", true, 0.85, {}, {},
          fmt::format("{} a round; a plain stream of the same bytes between buffers of that size, and then the fused "
                      "kernel, {}: no bound, as a round has both at once",
                      format_seconds(limit.ours), format_seconds(limit.peer)));
      const auto run_gloo = [&] { return gloo.run("0 1"); };
      MOTLEY_ASSIGN(const Comparison as_server, compare(pairs_, ours, run_gloo));
      MOTLEY_ASSIGN(const Comparison as_ring, compare(pairs_, [&] { return ring.run("round 0 2"); }, run_gloo));
      const bool server_wins = as_server.ratio < as_ring.ratio;
      worst = std::max(worst, std::min(as_server.ratio, as_ring.ratio));
      note += fmt::format("{}N={}: central {}, ring {}, Gloo {}: {}", note.empty() ? "" : "; ", ranks,
                          format_seconds(as_server.ours), format_seconds(as_ring.ours), format_seconds(as_ring.peer),
                          server_wins ? "central" : "ring");
    }
    rows_.add("tcp-loopback-best-placement", "ratio_to_gloo", worst, "", false, 1.05, {}, 1.0,
              note + "; the ring's and Gloo's without an optimizer");
    return {};
  }

  // Four workers behind links of 1 Gb/s, the server behind none.
  Status over_shaped_links() {
    constexpr int kRanks = 4;
    const auto network = NetworkNamespaces::create(kRanks, kLinkBytesPerSecond, 1);
    if (!network) {
      rows_.left_out("netns-1Gbps-N4", network.error().message);
      return {};
    }
    std::vector<ExchangeJob::Place> places;
    for (int rank = 0; rank < kRanks; ++rank) places.push_back({(*network)->prefix(rank), (*network)->address(rank)});
    MOTLEY_ASSIGN(
        const ServerProcess server,
        ServerProcess::start(options_, kServerCores, {(*network)->prefix(kRanks), (*network)->address(kRanks)}));
    MOTLEY_ASSIGN(ExchangeJob streams, ExchangeJob::start(options_, "tcp-ring", "4096", places));
    for (const auto& [wire, method, bytes] :
         {std::tuple("fp32", "ps-tcp", kModelBytes), std::tuple("bf16", "ps-tcp-bfloat16", kModelBytes / 2)}) {
      MOTLEY_ASSIGN(ExchangeJob job,
                    ExchangeJob::start(options_, method, model_buckets(), places, server.environment()));
      MOTLEY_ASSIGN(const Comparison link, compare(
                                               pairs_, [&] { return job.run("round 0 1"); },
                                               [&] { return streams.run(fmt::format("stream {} {}", bytes, bytes)); }));
      rows_.add(fmt::format("netns-1Gbps-N4-{}", wire), "ratio_to_limit", link.ratio, "", false, 1.05, 1.0, {},
                fmt::format("{} a round; a plain stream of the same bytes {}; links emulated with htb",
                            format_seconds(link.ours), format_seconds(link.peer)));
    }
    MOTLEY_ASSIGN(const std::vector<BenchRow> compression,
                  compression_rows(options_, places, model_buckets(), server.environment()));
    rows_.append(compression);
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_network_rows(const BenchOptions& options) {
  return PsNetwork(options).run();
}

}  // namespace motley::bench
