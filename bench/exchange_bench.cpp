// Ours and Gloo's processes are kept alive side by side and run batches of rounds in turn; each turn gives a ratio of
// times to the best of Gloo's algorithms, and the median of the turns is reported. Gloo is called from C++, as its own
// benchmark does. Both sides reduce float32 in memory that each process allocated once and has just written, all ranks
// begin a round together, with one thread a rank and without checksums; Gloo computes the sum, ours the weighted mean.
#include "bench/exchange_bench.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>

#include "bench/exchange_job.h"
#include "bench/network_namespaces.h"
#include "motley/base/units.h"
#include "motley/kernels/sum.h"
#include "motley/net/session.h"

namespace motley::bench {
namespace {

struct Size {
  const char* name;
  std::size_t bytes;
  int rounds;  // in one batch
};
constexpr Size kSizes[] = {{"32KB", 32 << 10, 200},
                           {"512KB", 512 << 10, 50},
                           {"4MB", 4 << 20, 10},
                           {"46.8MB", 46'800'000, 2},
                           {"100MB", 100'000'000, 1}};
constexpr int kStarts = 10;
constexpr int kBatchesAStart = 11;
enum SizeIndex { k32KB, k512KB, k4MB, k47MB, k100MB };

// The bound for shared memory: two threads, each pinned to a core, sum half of `ranks` buffers each and write the
// result into all of them; every other buffer has just been written by the one thread, the rest by the other. Seconds,
// median of `repeats`.
double bare_kernel_seconds(int ranks, std::size_t bytes, int repeats) {
  const std::size_t elements = bytes / sizeof(float);
  std::vector<std::vector<float>> buffers(static_cast<std::size_t>(ranks), std::vector<float>(elements, 1.0F));
  const std::vector<float> coefficients(static_cast<std::size_t>(ranks), 1.0F);
  const auto sum_half = [&](std::size_t half) {
    const std::size_t middle = elements / 2 / 16 * 16;
    const std::size_t begin = half == 0 ? 0 : middle;
    std::vector<const float*> inputs;
    std::vector<float*> outputs;
    for (auto& buffer : buffers) {
      inputs.push_back(buffer.data() + begin);
      outputs.push_back(buffer.data() + begin);
    }
    kernels::weighted_sum(inputs, coefficients, 1.0F / static_cast<float>(ranks), outputs,
                          half == 0 ? middle : elements - middle);
  };
  const auto pin = [](std::size_t core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
  };
  std::vector<double> seconds(static_cast<std::size_t>(repeats));
  std::atomic<int> at_start = 0;
  std::atomic<int> at_end = 0;
  const auto work = [&](std::size_t half) {
    pin(half);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      for (std::size_t rank = half; rank < buffers.size(); rank += 2) std::ranges::fill(buffers[rank], 1.0F);
      ++at_start;
      while (at_start < 2 * (repeat + 1)) std::this_thread::yield();
      const double began = monotonic_seconds();
      sum_half(half);
      ++at_end;
      while (at_end < 2 * (repeat + 1)) std::this_thread::yield();
      if (half == 0) seconds[repeat] = monotonic_seconds() - began;
    }
  };
  std::thread other(work, 1);
  std::thread one(work, 0);
  one.join();
  other.join();
  return median(seconds);
}

class ExchangeBench {
 public:
  explicit ExchangeBench(const BenchOptions& options) : options_(options), pairs_(options.quick ? 3 : 11) {
    for (const Size& size : kSizes) bytes_ += fmt::format("{}{}", bytes_.empty() ? "" : ",", size.bytes);
  }

  Result<std::vector<BenchRow>> run() {
    if (const auto gloo = built_peer("gloo_collectives"); gloo) {
      for (int ranks : {2, 4}) MOTLEY_TRY(against_gloo(ranks));
      add_means();
    } else {
      print(fmt::format("tcp-* and shm-* left out: {}", gloo.error().message));
    }
    MOTLEY_TRY(over_several_starts());
    MOTLEY_TRY(over_shaped_links());
    return std::move(rows_);
  }

 private:
  void add_means() {
    double log_sum = 0;
    double worst = 0;
    for (double ratio : tcp_ratios_) {
      log_sum += std::log(ratio);
      worst = std::max(worst, ratio);
    }
    const double mean = std::exp(log_sum / static_cast<double>(tcp_ratios_.size()));
    const std::string note =
        "ring over loopback TCP; 32 KB, 512 KB, 4 MB, 46.8 MB, 100 MB with 2 and 4 ranks; peer: Gloo in C++, for each "
        "the fastest of its algorithms";
    add("tcp-geomean", "ratio_to_gloo", mean, "", false, 0.5, {}, 1.0, note);
    add("tcp-worst", "ratio_to_gloo", worst, "", false, 0.8, {}, 1.0, note);
  }

  // The smallest size in shared memory, by processes started anew each time.
  Status over_several_starts() {
    const int starts = options_.quick ? 3 : kStarts;
    std::vector<double> medians;
    for (int start = 0; start < starts; ++start) {
      MOTLEY_ASSIGN(ExchangeJob job, ExchangeJob::start(options_, "shared-memory", std::to_string(kSizes[k32KB].bytes),
                                                        std::vector<ExchangeJob::Place>(2)));
      std::vector<double> rounds;
      for (int batch = 0; batch < kBatchesAStart; ++batch) {
        MOTLEY_ASSIGN(const double seconds, job.run(fmt::format("round 0 {}", kSizes[k32KB].rounds)));
        rounds.push_back(seconds * 1e6);
      }
      medians.push_back(median(rounds));
    }
    std::ranges::sort(medians);
    std::string all;
    for (const double one : medians) all += fmt::format("{}{:.2g}", all.empty() ? "" : ", ", one);
    add("shm-N2-32KB-ten-starts", "worst_round_us", medians.back(), "us", false, 15, {}, {},
        fmt::format("median of {} batches of {} rounds in each of {} starts: {}", kBatchesAStart, kSizes[k32KB].rounds,
                    starts, all));
    return {};
  }

  void print(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }
  void add(const std::string& name, const std::string& metric, double value, const std::string& unit, bool more,
           std::optional<double> target, std::optional<double> limit, std::optional<double> peer,
           const std::string& note) {
    rows_.push_back({name, metric, value, unit, more, target, limit, peer, note});
    print(fmt::format("{} {} {:.4g} {}", name, metric, value, unit));
  }

  Status against_gloo(int ranks) {
    print(fmt::format("starting {} ranks of each", ranks));
    MOTLEY_ASSIGN(ExchangeJob shared,
                  ExchangeJob::start(options_, "shared-memory", bytes_, std::vector<ExchangeJob::Place>(ranks)));
    MOTLEY_ASSIGN(ExchangeJob ring,
                  ExchangeJob::start(options_, "tcp-ring-barrier", bytes_, std::vector<ExchangeJob::Place>(ranks)));
    for (int index = 0; index < static_cast<int>(std::size(kSizes)); ++index) {
      const Size& size = kSizes[index];
      MOTLEY_ASSIGN(std::vector<ExchangeJob> gloo, ExchangeJob::start_gloo_algorithms(ranks, size.bytes));
      const std::string batch = fmt::format("round {} {}", index, size.rounds);
      const auto run_gloo = [&](int algorithm) {
        return gloo[static_cast<std::size_t>(algorithm)].run(fmt::format("{} 0", size.rounds));
      };
      const int algorithms = static_cast<int>(gloo.size());
      MOTLEY_ASSIGN(const Comparison tcp,
                    compare_with_best(pairs_, [&] { return ring.run(batch); }, algorithms, run_gloo));
      tcp_ratios_.push_back(tcp.ratio);
      add(fmt::format("tcp-N{}-{}", ranks, size.name), "ratio_to_gloo", tcp.ratio, "", false, {}, {}, 1.0,
          fmt::format("{} a round, Gloo {} ({})", format_seconds(tcp.ours), format_seconds(tcp.peer),
                      kGlooAlgorithms[tcp.best]));

      const bool latency = index == k32KB && ranks == 2;
      if (!latency && index != k4MB && index != k47MB) continue;
      // A short batch is easily disturbed by what else the machine does: more of them.
      const int memory_pairs = latency ? 3 * pairs_ : pairs_;
      MOTLEY_ASSIGN(const Comparison memory,
                    compare_with_best(memory_pairs, [&] { return shared.run(batch); }, algorithms, run_gloo));
      const double bare = bare_kernel_seconds(ranks, size.bytes, pairs_ * std::min(size.rounds, 10));
      const std::string name = fmt::format("shm-N{}-{}", ranks, size.name);
      const std::string note =
          fmt::format("{} a round, Gloo {}, bare kernel on two pinned threads {}", format_seconds(memory.ours),
                      format_seconds(memory.peer), format_seconds(bare));
      if (latency) {
        add(name, "round_us", memory.ours * 1e6, "us", false, 15.0, bare * 1e6, memory.peer * 1e6, note);
      } else {
        add(name, "ratio_to_gloo", memory.ratio, "", false, 0.33, bare / memory.peer, 1.0, note);
      }
    }
    return {};
  }

  // Four ranks in network namespaces of their own, each with 1 Gb/s in and out.
  Status over_shaped_links() {
    constexpr int kRanks = 4;
    const std::string name = "netns-1Gbps-N4-46.8MB";
    auto network = NetworkNamespaces::create(kRanks, 125e6);
    if (!network) {
      print(fmt::format("{} left out: {}", name, network.error().message));
      return {};
    }
    std::vector<ExchangeJob::Place> places;
    for (int rank = 0; rank < kRanks; ++rank) places.push_back({(*network)->prefix(rank), (*network)->address(rank)});
    const std::size_t bytes = kSizes[k47MB].bytes;
    MOTLEY_ASSIGN(ExchangeJob job, ExchangeJob::start(options_, "tcp-ring", std::to_string(bytes), places));
    const std::size_t ring_bytes = 2 * (kRanks - 1) * bytes / kRanks;
    MOTLEY_ASSIGN(const Comparison shaped, compare(
                                               options_.quick ? 3 : 9, [&] { return job.run("round 0 1"); },
                                               [&] { return job.run(fmt::format("stream {}", ring_bytes)); }));
    add(name, "share_of_limit", 1 / shaped.ratio, "", true, 0.95, 1.0, {},
        fmt::format("{} a round, plain stream of the ring's bytes {}; links emulated with htb",
                    format_seconds(shaped.ours), format_seconds(shaped.peer)));
    return {};
  }

  const BenchOptions& options_;
  const int pairs_;
  std::string bytes_;
  std::vector<BenchRow> rows_;
  std::vector<double> tcp_ratios_;
};

}  // namespace

Result<std::vector<BenchRow>> exchange_bench(const BenchOptions& options) {
  return ExchangeBench(options).run();
}

}  // namespace motley::bench
