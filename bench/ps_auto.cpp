// What gradient_sync.method auto chooses, beside what would have been best: the same steps with every method that is
// possible there, the optimizer's step of SGD with momentum included, in turn. Workers that move their own weights do
// so in one fused pass, which is the least that an optimizer can take.
#include <algorithm>
#include <map>

#include "bench/network_namespaces.h"
#include "bench/ps_groups.h"
#include "motley/base/units.h"

namespace motley::bench {
namespace {

class PsAuto {
 public:
  explicit PsAuto(const BenchOptions& options) : options_(options), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    for (const int ranks : options_.quick ? std::vector<int>{4} : std::vector<int>{2, 4}) {
      MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
      MOTLEY_TRY(judge(fmt::format("one host, N={}", ranks), here(ranks), server,
                       {"shared-memory-step", "tcp-ring-step", "ps-memory", "ps-tcp"}, "auto"));
    }
    constexpr int kRanks = 4;
    for (const int unshaped : options_.quick ? std::vector<int>{1} : std::vector<int>{1, 0}) {
      const auto network = NetworkNamespaces::create(kRanks + 1 - unshaped, kLinkBytesPerSecond, unshaped);
      if (!network) {
        rows_.left_out("auto over links of 1 Gb/s", network.error().message);
        break;
      }
      std::vector<ExchangeJob::Place> places;
      for (int at = 0; at <= kRanks; ++at) places.push_back({(*network)->host_prefix(at), (*network)->address(at)});
      MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores, places[kRanks]));
      places.pop_back();
      const std::string name = unshaped == 1 ? "1 Gb/s, server's link unshaped" : "1 Gb/s, server's too";
      MOTLEY_TRY(judge(name, places, server, {"tcp-ring-step", "ps-tcp"}, "auto"));
      if (options_.quick) continue;
      MOTLEY_TRY(
          judge(name + ", bf16", places, server, {"tcp-ring-bfloat16-step", "ps-tcp-bfloat16"}, "auto-bfloat16"));
    }
    rows_.add("auto", "worst_loss_to_best", worst_, "", false, 0.05, 0.0, {}, note_);
    return rows_.take();
  }

 private:
  // All methods take turns; which of them `auto` is, its ranks say. Only one job at a time is alive besides, so that
  // ranks that wait do not stand in the way.
  Status judge(const std::string& name, const std::vector<ExchangeJob::Place>& places, const ServerProcess& server,
               const std::vector<std::string>& methods, const std::string& automatic) {
    std::string chosen;
    {
      MOTLEY_ASSIGN(const ExchangeJob job, ExchangeJob::start(options_, automatic, model_buckets(), places,
                                                              server.environment(), "bench-auto"));
      chosen = job.method();
    }
    std::vector<ExchangeJob> jobs;
    for (const std::string& method : methods) {
      MOTLEY_ASSIGN(ExchangeJob job,
                    ExchangeJob::start(options_, method, model_buckets(), places, server.environment(), method));
      jobs.push_back(std::move(job));
    }
    std::vector<std::vector<double>> seconds(methods.size());
    for (int turn = 0; turn <= pairs(options_); ++turn) {
      for (std::size_t at = 0; at < jobs.size(); ++at) {
        MOTLEY_ASSIGN(const double one, jobs[at].run("round 0 1"));
        if (turn > 0) seconds[at].push_back(one);
      }
    }
    // A server that shares memory does so without being asked, so that of its two ways `auto` gets the first.
    double best = median(seconds[0]);
    double automatic_seconds = 0;
    std::string times;
    for (std::size_t at = 0; at < jobs.size(); ++at) {
      const double one = median(seconds[at]);
      best = std::min(best, one);
      if (automatic_seconds == 0 && jobs[at].method() == chosen) automatic_seconds = one;
      times += fmt::format("{}{} {}", times.empty() ? "" : ", ", methods[at], format_seconds(one));
    }
    if (automatic_seconds == 0) {
      return fail(ErrorCode::kInternal, "{}: auto chose '{}', which was not measured", name, chosen);
    }
    worst_ = std::max(worst_, automatic_seconds / best - 1);
    note_ += fmt::format("{}{}: {} ({})", note_.empty() ? "" : "; ", name, chosen, times);
    rows_.print(fmt::format("{}: {} ({})", name, chosen, times));
    return {};
  }

  const BenchOptions& options_;
  RowList rows_;
  double worst_ = 0;
  std::string note_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_auto_rows(const BenchOptions& options) {
  return PsAuto(options).run();
}

}  // namespace motley::bench
