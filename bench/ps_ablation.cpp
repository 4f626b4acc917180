// Rounds of a model of 46.8 MB, except where a row says otherwise.
#include "bench/ps_ablation.h"

#include <algorithm>
#include <cmath>

#include "bench/ps_groups.h"
#include "bench/update_ablation.h"
#include "motley/base/random.h"
#include "motley/base/units.h"
#include "motley/ps/protocol/chunk_map.h"

namespace motley::bench {
namespace {

constexpr int kRanks = 4;

class PsAblation {
 public:
  explicit PsAblation(const BenchOptions& options) : options_(options), pairs_(pairs(options)), rows_(options) {}

  Result<std::vector<BenchRow>> run() {
    MOTLEY_TRY(chunks());
    MOTLEY_TRY(packing());
    MOTLEY_TRY(kernels());
    MOTLEY_TRY(places());
    return rows_.take();
  }

 private:
  // The unit of summing, and above 256 KB also of ownership and of frames.
  Status chunks() {
    const std::vector<std::size_t> sizes = options_.quick ? std::vector<std::size_t>{8, 32, 1024}
                                                          : std::vector<std::size_t>{4, 8, 16, 32, 64, 256, 1024, 4096};
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
    for (const std::string& method : {std::string("ps-memory"), std::string("ps-tcp")}) {
      std::vector<ExchangeJob> jobs;
      for (const std::size_t kilobytes : sizes) {
        std::vector<std::string> environment = server.environment();
        environment.push_back(fmt::format("MOTLEY_BENCH_CHUNK={}", kilobytes << 10));
        MOTLEY_ASSIGN(ExchangeJob job, ExchangeJob::start(options_, method, model_buckets(), here(kRanks), environment,
                                                          fmt::format("{}-{}", method, kilobytes)));
        jobs.push_back(std::move(job));
      }
      std::vector<std::vector<double>> seconds(sizes.size());
      for (int turn = 0; turn <= pairs_; ++turn) {
        for (std::size_t at = 0; at < jobs.size(); ++at) {
          MOTLEY_ASSIGN(const double one, jobs[at].run("round 0 2"));
          if (turn > 0) seconds[at].push_back(one);
        }
      }
      for (std::size_t at = 0; at < jobs.size(); ++at) {
        rows_.add(fmt::format("chunk-{}KB", sizes[at]),
                  method == "ps-memory" ? "shm_round_seconds" : "tcp_round_seconds", median(seconds[at]), "s", false,
                  {}, {}, {}, fmt::format("N={}; medians in turn", kRanks));
      }
    }
    return {};
  }

  // Tensors as networks have them, a large one and a small one in turn, each a bucket: weights and biases.
  static std::vector<std::size_t> mixed_tensors() {
    Random random(1);
    std::vector<std::size_t> elements;
    for (int layer = 0; layer < 100; ++layer) {
      const double weights = std::exp(std::log(1e3) + random.uniform() * std::log(1e3));  // a thousand to a million
      elements.push_back(static_cast<std::size_t>(weights));
      elements.push_back(static_cast<std::size_t>(std::sqrt(weights)));
    }
    return elements;
  }

  // The same segments, given to bins by longest processing time or in turn.
  Status packing() {
    const std::vector<std::size_t> tensors = mixed_tensors();
    for (const int bins : {kServerCores, 28}) {
      const ps::ChunkMap packed = ps::make_chunk_map(tensors, 32 << 10, bins);
      std::vector<std::size_t> in_turn(static_cast<std::size_t>(bins));
      for (std::size_t at = 0; at < packed.segments.size(); ++at) {
        in_turn[at % in_turn.size()] += packed.segments[at].count;
      }
      const auto imbalance = [&](const std::vector<std::size_t>& load) {
        std::size_t sum = 0;
        for (const std::size_t one : load) sum += one;
        return static_cast<double>(*std::ranges::max_element(load)) * bins / static_cast<double>(sum);
      };
      const std::string note = fmt::format("most loaded core over the mean; {} segments of 200 tensors, {} cores",
                                           packed.segments.size(), bins);
      rows_.add(fmt::format("packing-lpt-{}", bins), "imbalance", imbalance(packed.load), "", false, {}, 1.0,
                imbalance(in_turn), note + "; peer: round robin");
      if (bins != kServerCores) continue;
      // What that costs: as many bytes as each core has, both at work at once.
      const auto pass = [&](const std::vector<std::size_t>& load) -> Result<double> {
        return ps::seconds_per_pass(kRanks, *std::ranges::max_element(load) * sizeof(float) * bins, bins);
      };
      MOTLEY_ASSIGN(const Comparison seconds,
                    compare(pairs_, [&] { return pass(packed.load); }, [&] { return pass(in_turn); }));
      rows_.add("packing-lpt-2", "round_seconds", seconds.ours, "s", false, {}, {}, seconds.peer,
                fmt::format("the fused kernel until the most loaded core is done, N={}; peer: round robin", kRanks));
    }
    return {};
  }

  Status kernels() {
    const auto pass = [](const ps::UpdatePass& update) {
      return [update]() -> Result<double> { return ps::seconds_per_pass(kRanks, kModelBytes, kServerCores, update); };
    };
    const auto add = [&](const std::string& name, const ps::UpdatePass& other, const std::string& words) -> Status {
      MOTLEY_ASSIGN(const Comparison seconds, compare(pairs_, pass(ps::fused_pass), pass(other)));
      rows_.add(name, "ratio_to_alternative", seconds.ratio, "", false, {}, {}, 1.0,
                fmt::format("{} a pass, {} {}; N={}, two pinned threads", format_seconds(seconds.ours), words,
                            format_seconds(seconds.peer), kRanks));
      return {};
    };
    MOTLEY_TRY(add("fused-sum-and-step", copy_add_optimize_pass, "copy, add one by one, then the step:"));
    return add("cached-stores", non_temporal_pass, "stores past the caches:");
  }

  Status places() {
    MOTLEY_ASSIGN(const ServerProcess server, ServerProcess::start(options_, kServerCores));
    MOTLEY_ASSIGN(ExchangeJob in_place, served_job(options_, server, "ps-memory", kRanks, "in-place"));
    MOTLEY_ASSIGN(ExchangeJob messages, served_job(options_, server, "ps-tcp", kRanks, "messages"));
    MOTLEY_ASSIGN(
        const Comparison seconds,
        compare(pairs_, [&] { return in_place.run("round 0 2"); }, [&] { return messages.run("round 0 2"); }));
    rows_.add("in-place", "ratio_to_alternative", seconds.ratio, "", false, {}, {}, 1.0,
              fmt::format("{} a round in shared memory, {} as messages over loopback TCP; N={}",
                          format_seconds(seconds.ours), format_seconds(seconds.peer), kRanks));
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  RowList rows_;
};

}  // namespace

Result<std::vector<BenchRow>> ps_ablation_bench(const BenchOptions& options) {
  return PsAblation(options).run();
}

}  // namespace motley::bench
