// A model of 46.8 MB in buckets of about 4 MB, float32, SGD with momentum on the server. Workers compute nothing: a
// round is all gradients in and all weights out. Whatever is compared takes turns, in processes that stay alive; the
// median of the pairs' ratios is reported.
#include "bench/ps_bench.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "bench/compression_bench.h"
#include "bench/exchange_job.h"
#include "bench/network_namespaces.h"
#include "bench/racks_bench.h"
#include "bench/sparse_bench.h"
#include "bench/sparse_net_bench.h"
#include "bench/update_ablation.h"
#include "motley/base/clock.h"
#include "motley/base/file.h"
#include "motley/base/units.h"
#include "motley/transport/session.h"

namespace motley::bench {
namespace {

constexpr std::size_t kModelBytes = 46'800'000;
constexpr int kBuckets = 12;
constexpr double kServerSeconds = 30;  // to start
constexpr double kLinkBytesPerSecond = 125e6;
constexpr int kCores = 2;  // of the server, as the limits have two threads

std::string buckets_of(std::size_t bytes, int buckets) {
  std::string text;
  for (int bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t part = bytes / static_cast<std::size_t>(buckets) / 4 * 4;
    text += fmt::format("{}{}", text.empty() ? "" : ",", part);
  }
  return text;
}

// A process of `motley server`, and what its clients have to know.
class ServerProcess {
 public:
  static Result<ServerProcess> start(const BenchOptions& options, int cores, const ExchangeJob::Place& place = {}) {
    static int count = 0;
    ServerProcess server;
    server.address_file_ =
        std::filesystem::temp_directory_path() / fmt::format("motley-bench-{}-{}.address", ::getpid(), count++);
    server.token_ = "MOTLEY_SERVER_TOKEN=" + transport::Secret::generate().hex();
    std::vector<std::string> command = place.prefix;
    for (const std::string& word :
         {options.motley.string(), std::string("server"), std::string("--listen"),
          (place.address.empty() ? "127.0.0.1" : place.address) + ":0", std::string("--cores"), std::to_string(cores),
          std::string("--address-file"), server.address_file_.string(), std::string("--quiet")}) {
      command.push_back(word);
    }
    MOTLEY_ASSIGN(server.process_, ChildProcess::start(command, {server.token_}));
    for (const Deadline deadline = Deadline::after(kServerSeconds);;) {
      if (const auto address = read_file(server.address_file_, 256)) {
        server.address_ = address->substr(0, address->find('\n'));
        std::filesystem::remove(server.address_file_);
        return server;
      }
      if (deadline.passed()) return fail(ErrorCode::kTimeout, "a server did not start within {} s", kServerSeconds);
      SteadyClock::instance().sleep_until(monotonic_seconds() + 0.01);
    }
  }
  std::vector<std::string> environment() const { return {"MOTLEY_SERVERS=" + address_, token_}; }

 private:
  std::unique_ptr<ChildProcess> process_;
  std::filesystem::path address_file_;
  std::string address_;
  std::string token_;
};

class PsBench {
 public:
  explicit PsBench(const BenchOptions& options) : options_(options), pairs_(options.quick ? 3 : 9) {}

  Result<std::vector<BenchRow>> run() {
    for (const int ranks : {2, 4, 8}) MOTLEY_TRY(in_memory(ranks));
    MOTLEY_TRY(latency());
    MOTLEY_TRY(over_loopback());
    MOTLEY_TRY(over_shaped_links());
    MOTLEY_ASSIGN(const std::vector<BenchRow> racks, racks_rows(options_));
    rows_.insert(rows_.end(), racks.begin(), racks.end());
    MOTLEY_TRY(tenants());
    MOTLEY_ASSIGN(const std::vector<BenchRow> sparse, sparse_rows(options_));
    rows_.insert(rows_.end(), sparse.begin(), sparse.end());
    MOTLEY_ASSIGN(const std::vector<BenchRow> sparse_net, sparse_net_rows(options_));
    rows_.insert(rows_.end(), sparse_net.begin(), sparse_net.end());
    return std::move(rows_);
  }

 private:
  void say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }
  void add(const std::string& name, const std::string& metric, double value, const std::string& unit, bool more,
           std::optional<double> target, std::optional<double> limit, std::optional<double> peer,
           const std::string& note) {
    rows_.push_back({name, metric, value, unit, more, target, limit, peer, note});
    say(fmt::format("{} {} {:.4g} {}", name, metric, value, unit));
  }
  static std::vector<ExchangeJob::Place> here(int ranks) {
    return std::vector<ExchangeJob::Place>(static_cast<std::size_t>(ranks));
  }
  Result<ExchangeJob> workers(const ServerProcess& server, const std::string& method, int ranks,
                              const std::string& name = "bench") const {
    return ExchangeJob::start(options_, method, buckets_of(kModelBytes, kBuckets), here(ranks), server.environment(),
                              name);
  }

  Status in_memory(int ranks) {
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kCores));
    MOTLEY_ASSIGN(ExchangeJob job, workers(server, "ps-memory", ranks));
    const auto ours = [&] { return job.run("round 0 2"); };
    const auto bare = [&]() -> Result<double> {
      return seconds_per_pass(UpdateVariant::kFused, ranks, kModelBytes, kCores);
    };
    const std::string name = fmt::format("shm-N{}", ranks);
    MOTLEY_ASSIGN(const Comparison limit, compare(pairs_, ours, bare));
    add(name, "share_of_limit", 1 / limit.ratio, "", true, 0.75, 1.0, {},
        fmt::format("{} a round; the fused kernel alone, two pinned threads, {}", format_seconds(limit.ours),
                    format_seconds(limit.peer)));
    if (ranks != 4) return {};
    MOTLEY_ASSIGN(ExchangeJob gloo,
                  ExchangeJob::start_gloo(options_, ranks, std::to_string(kModelBytes), {"--momentum", "--meet"}));
    MOTLEY_ASSIGN(const Comparison peer, compare(pairs_, ours, [&] { return gloo.run("0 1"); }));
    add(name, "ratio_to_gloo_plus_optimizer", peer.ratio, "", false, 0.14, {}, 1.0,
        fmt::format("{} a round; torch all_reduce and SGD with momentum {}", format_seconds(peer.ours),
                    format_seconds(peer.peer)));
    return {};
  }

  Status latency() {
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, 1));
    MOTLEY_ASSIGN(ExchangeJob job,
                  ExchangeJob::start(options_, "ps-memory", std::to_string(32 << 10), here(1), server.environment()));
    std::vector<double> seconds;
    for (int batch = 0; batch < 3 * pairs_; ++batch) {
      MOTLEY_ASSIGN(const double one, job.run("round 0 200"));
      seconds.push_back(one);
    }
    add("shm-N1-32KB", "push_pull_us", median(seconds) * 1e6, "us", false, 15.0, {}, {},
        fmt::format("median of {} batches of 200", seconds.size()));
    return {};
  }

  Status over_loopback() {
    double worst = 0;
    std::string note;
    for (const int ranks : {2, 4}) {
      MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kCores));
      MOTLEY_ASSIGN(ExchangeJob central, workers(server, "ps-tcp", ranks));
      MOTLEY_ASSIGN(ExchangeJob ring,
                    ExchangeJob::start(options_, "tcp-ring-meet", std::to_string(kModelBytes), here(ranks)));
      MOTLEY_ASSIGN(ExchangeJob gloo,
                    ExchangeJob::start_gloo(options_, ranks, std::to_string(kModelBytes), {"--meet"}));
      const auto ours = [&] { return central.run("round 0 2"); };
      // As many bytes as go to and from the server, and the arithmetic in turn with them.
      const auto stream = [&]() -> Result<double> {
        MOTLEY_ASSIGN(const double sent, ring.run(fmt::format("stream {}", 2 * kModelBytes)));
        return sent + seconds_per_pass(UpdateVariant::kFused, ranks, kModelBytes, kCores);
      };
      MOTLEY_ASSIGN(const Comparison limit, compare(pairs_, ours, stream));
      add(fmt::format("tcp-loopback-N{}", ranks), "share_of_limit", 1 / limit.ratio, "", true, 0.85, 1.0, {},
          fmt::format("{} a round; a plain stream of the same bytes and the fused kernel {}",
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
    add("tcp-loopback-best-placement", "ratio_to_gloo", worst, "", false, 1.05, {}, 1.0,
        note + "; the ring's and Gloo's without an optimizer");
    return {};
  }

  // Four workers behind links of 1 Gb/s, the server behind none.
  Status over_shaped_links() {
    constexpr int kRanks = 4;
    auto network = NetworkNamespaces::create(kRanks, kLinkBytesPerSecond, 1);
    if (!network) {
      say(fmt::format("netns-1Gbps-N4 left out: {}", network.error().message));
      return {};
    }
    std::vector<ExchangeJob::Place> places;
    for (int rank = 0; rank < kRanks; ++rank) places.push_back({(*network)->prefix(rank), (*network)->address(rank)});
    MOTLEY_ASSIGN(const ServerProcess server,
                  ServerProcess::start(options_, kCores, {(*network)->prefix(kRanks), (*network)->address(kRanks)}));
    MOTLEY_ASSIGN(ExchangeJob streams, ExchangeJob::start(options_, "tcp-ring", "4096", places));
    for (const auto& [wire, method, bytes] :
         {std::tuple("fp32", "ps-tcp", kModelBytes), std::tuple("bf16", "ps-tcp-bfloat16", kModelBytes / 2)}) {
      MOTLEY_ASSIGN(ExchangeJob job, ExchangeJob::start(options_, method, buckets_of(kModelBytes, kBuckets), places,
                                                        server.environment()));
      MOTLEY_ASSIGN(const Comparison link, compare(
                                               options_.quick ? 3 : 9, [&] { return job.run("round 0 1"); },
                                               [&] { return streams.run(fmt::format("stream {}", bytes)); }));
      add(fmt::format("netns-1Gbps-N4-{}", wire), "ratio_to_limit", link.ratio, "", false, 1.05, 1.0, {},
          fmt::format("{} a round; a plain stream of the same bytes {}; links emulated with tbf",
                      format_seconds(link.ours), format_seconds(link.peer)));
    }
    MOTLEY_ASSIGN(const std::vector<BenchRow> compression,
                  compression_rows(options_, places, buckets_of(kModelBytes, kBuckets), server.environment()));
    rows_.insert(rows_.end(), compression.begin(), compression.end());
    return {};
  }

  // Jobs of two workers each, all at once on one server, beside one of them alone.
  Status tenants() {
    constexpr int kRanks = 2;
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kCores));
    std::vector<ExchangeJob> jobs;
    for (int tenant = 0; tenant < 8; ++tenant) {
      MOTLEY_ASSIGN(ExchangeJob job, workers(server, "ps-memory", kRanks, fmt::format("bench-{}", tenant)));
      jobs.push_back(std::move(job));
    }
    const std::string batch = fmt::format("round 0 {}", options_.quick ? 4 : 8);
    // Seconds of a round of each.
    const auto together = [&](std::size_t count) -> Result<std::vector<double>> {
      for (std::size_t i = 0; i < count; ++i) MOTLEY_TRY(jobs[i].begin(batch));
      std::vector<double> seconds;
      for (std::size_t i = 0; i < count; ++i) {
        MOTLEY_ASSIGN(const double one, jobs[i].end());
        seconds.push_back(one);
      }
      return seconds;
    };
    std::vector<double> shares;
    std::vector<double> slowest;
    for (int pair = 0; pair < pairs_ + 1; ++pair) {
      MOTLEY_ASSIGN(const auto alone, together(1));
      MOTLEY_ASSIGN(const auto two, together(2));
      MOTLEY_ASSIGN(const auto eight, together(8));
      if (pair == 0) continue;
      shares.push_back(alone[0] * (1 / two[0] + 1 / two[1]));
      double sum = 0;
      for (const double seconds : eight) sum += 1 / seconds;
      slowest.push_back(8 / *std::ranges::max_element(eight) / sum);
    }
    add("two-tenants", "share_of_one", median(shares), "", true, 0.95, {}, {},
        "rounds a second of two jobs of two workers, in sum, over those of one alone; shared memory");
    add("eight-tenants", "slowest_share_of_fair", median(slowest), "", true, 0.8, 1.0, {},
        "the slowest of eight jobs over an eighth of the rounds of all");
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  std::vector<BenchRow> rows_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_bench(const BenchOptions& options) {
  return PsBench(options).run();
}

}  // namespace motley::bench
