// Ranks on the server's host: nothing but counters moves.
#include <algorithm>

#include "bench/ps_groups.h"
#include "motley/base/units.h"
#include "motley/ps/dense/update_speed.h"

namespace motley::bench {
namespace {

class PsMemory {
 public:
  explicit PsMemory(const BenchOptions& options) : options_(options), pairs_(pairs(options)), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (const int ranks : {2, 4, 8}) MOTLEY_TRY(rounds(ranks));
    MOTLEY_TRY(latency());
    MOTLEY_TRY(tenants());
    return rows_.take();
  }

 private:
  Status rounds(int ranks) {
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
    MOTLEY_ASSIGN(ExchangeJob job, served_job(options_, server, "ps-memory", ranks));
    const auto ours = [&] { return job.run("round 0 2"); };
    const auto bare = [&]() -> Result<double> { return ps::seconds_per_pass(ranks, kModelBytes, kServerCores); };
    const std::string name = fmt::format("shm-N{}", ranks);
    MOTLEY_ASSIGN(const Comparison limit, compare(pairs_, ours, bare));
    rows_.add(name, "share_of_limit", 1 / limit.ratio, "", true, 0.75, 1.0, {},
              fmt::format("{} a round; the fused kernel alone, two pinned threads, {}", format_seconds(limit.ours),
                          format_seconds(limit.peer)));
    if (ranks != 4) return {};
    {
      MOTLEY_ASSIGN(ExchangeJob gloo,
                    ExchangeJob::start_gloo(options_, ranks, std::to_string(kModelBytes), {"--momentum", "--barrier"}));
      MOTLEY_ASSIGN(const Comparison peer, compare(pairs_, ours, [&] { return gloo.run("0 1"); }));
      rows_.add(name, "ratio_to_gloo_plus_optimizer", peer.ratio, "", false, 0.14, {}, 1.0,
                fmt::format("{} a round; torch all_reduce and SGD with momentum {}", format_seconds(peer.ours),
                            format_seconds(peer.peer)));
    }
    const auto program = built_peer("openmpi_allreduce");
    if (!program) {
      rows_.left_out(name + " ratio_to_openmpi", program.error().message);
      return {};
    }
    MOTLEY_ASSIGN(ExchangeJob openmpi,
                  ExchangeJob::start_peer({"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                                           "--mca", "pml", "ob1", "--mca", "btl", "self,vader", "-np",
                                           std::to_string(ranks), *program, std::to_string(kModelBytes)}));
    MOTLEY_ASSIGN(const Comparison peer, compare(pairs_, ours, [&] { return openmpi.run("1"); }));
    rows_.add(name, "ratio_to_openmpi", peer.ratio, "", false, 0.2, {}, 1.0,
              fmt::format("{} a round with the optimizer; Open MPI's Allreduce over shared memory, without, {}",
                          format_seconds(peer.ours), format_seconds(peer.peer)));
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
    rows_.add("shm-N1-32KB", "push_pull_us", median(seconds) * 1e6, "us", false, 15.0, {}, {},
              fmt::format("median of {} batches of 200", seconds.size()));
    return {};
  }

  // Jobs of two workers each, all at once on one server, beside one of them alone.
  Status tenants() {
    constexpr int kRanks = 2;
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
    std::vector<ExchangeJob> jobs;
    for (int tenant = 0; tenant < 8; ++tenant) {
      MOTLEY_ASSIGN(ExchangeJob job,
                    served_job(options_, server, "ps-memory", kRanks, fmt::format("bench-{}", tenant)));
      jobs.push_back(std::move(job));
    }
    const int rounds = options_.quick ? 4 : 8;
    // Seconds until as many jobs have made that many rounds each, from the first one's begin to the last one's end.
    const auto together = [&](std::size_t count) -> Result<double> {
      const double begin = monotonic_seconds();
      for (std::size_t i = 0; i < count; ++i) MOTLEY_TRY(jobs[i].begin(fmt::format("round 0 {}", rounds)));
      for (std::size_t i = 0; i < count; ++i) MOTLEY_TRY(jobs[i].end());
      return monotonic_seconds() - begin;
    };
    // The rounds a second of one job over an eighth of those of all. The others make four times as many, so that one
    // that is not served beside them shows.
    const auto share_of_fair = [&](std::size_t watched) -> Result<double> {
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        MOTLEY_TRY(jobs[i].begin(fmt::format("round 0 {}", i == watched ? rounds : 4 * rounds)));
      }
      double own = 0;
      double all = 0;
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        MOTLEY_ASSIGN(const double seconds, jobs[i].end());
        all += 1 / seconds;
        if (i == watched) own = 1 / seconds;
      }
      return own * static_cast<double>(jobs.size()) / all;
    };
    std::vector<double> shares;
    for (int pair = 0; pair < pairs_ + 1; ++pair) {
      MOTLEY_ASSIGN(const double alone, together(1));
      MOTLEY_ASSIGN(const double two, together(2));
      if (pair > 0) shares.push_back(2 * alone / two);
    }
    double slowest = 1;
    for (std::size_t watched = 0; watched < jobs.size(); ++watched) {
      MOTLEY_ASSIGN(const double share, share_of_fair(watched));
      slowest = std::min(slowest, share);
    }
    rows_.add("two-tenants", "share_of_one", median(shares), "", true, 0.95, {}, {},
              "rounds a second of two jobs of two workers, in sum, over those of one alone; shared memory");
    rows_.add(
        "eight-tenants", "slowest_share_of_fair", slowest, "", true, 0.8, 1.0, {},
        "the least of eight jobs' rounds a second over an eighth of those of all, beside seven that go on longer");
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_memory_rows(const BenchOptions& options) {
  return PsMemory(options).run();
}

}  // namespace motley::bench
